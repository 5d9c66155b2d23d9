//! The centres of groups of rows. They affect only speed: how many rows are in doubt, and how many centroids need not be multiplied.

use crate::backend::cuda::device::{Buffer, Plain};
use crate::error::Result;
use crate::float::Float;
use crate::memory;
use rayon::prelude::*;

/// The most centroids that are looked at: so many runs of neighbours.
const RUNS: usize = 64;
const RUN: usize = 16;
/// Rounds of assignments and means.
const ROUNDS: usize = 4;
const WHAT: &str = "centres of groups";

/// Some of the centroids on the device (`(k, d)`), row-major.
pub fn sample<T: Float + Plain>(centroids: &Buffer<T>, d: usize, k: usize) -> Result<Vec<T>> {
    if k <= RUNS * RUN {
        return centroids.to_vec();
    }
    let mut sampled = memory::zeroed(RUNS * RUN * d, WHAT)?;
    for (run, values) in sampled.chunks_mut(RUN * d).enumerate() {
        centroids.read(run * (k - RUN) / (RUNS - 1) * d, values)?;
    }
    Ok(sampled)
}

/// `count` points amid these centroids (row-major): a short k-means. `scale`: a power of two that brings the largest differences near 1.
pub fn centres<T: Float>(centroids: &[T], d: usize, count: usize, scale: T) -> Result<Vec<T>> {
    let scale = scale.to_f64();
    let origin: Vec<f64> = memory::collected(centroids[..d].iter().map(|v| v.to_f64()), WHAT)?;
    let centred = centroids.iter().zip(origin.iter().cycle()).map(|(v, from)| ((v.to_f64() - from) * scale) as f32);
    let points: Vec<f32> = memory::collected(centred, WHAT)?;
    let mut chosen = spread(&points, d, count)?;
    for _ in 0..ROUNDS {
        means(&points, d, &mut chosen)?;
    }
    memory::collected(chosen.iter().zip(origin.iter().cycle()).map(|(&v, from)| T::from_f64(f64::from(v) / scale + from)), WHAT)
}

fn square(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum()
}

/// `count` of the points, far from each other: each is drawn in proportion to its squared distance from those before it (Arthur &
/// Vassilvitskii 2007).
fn spread(points: &[f32], d: usize, count: usize) -> Result<Vec<f32>> {
    let mut chosen: Vec<f32> = memory::collected(points[..d].iter().copied(), WHAT)?;
    let mut near: Vec<f32> = memory::filled(points.len() / d, f32::INFINITY, WHAT)?;
    memory::reserve(&mut chosen, count * d, WHAT)?;
    let mut state = 1u64;
    for _ in 1..count {
        let last = &chosen[chosen.len() - d..];
        near.par_iter_mut().zip(points.par_chunks(d)).for_each(|(near, point)| *near = near.min(square(point, last)));
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let total: f64 = near.iter().map(|&v| f64::from(v)).sum();
        let mut left = (state >> 11) as f64 / (1u64 << 53) as f64 * total;
        let drawn = near.iter().position(|&v| {
            left -= f64::from(v);
            left < 0.0
        });
        let at = drawn.unwrap_or(0) * d;
        chosen.extend_from_slice(&points[at..at + d]);
    }
    Ok(chosen)
}

/// Each centre becomes the mean of the points nearest to it. A centre without points stays.
fn means(points: &[f32], d: usize, centres: &mut [f32]) -> Result<()> {
    let count = centres.len() / d;
    let nearest = |point: &[f32]| {
        let distances = centres.chunks(d).map(|centre| square(point, centre));
        distances.enumerate().min_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(centre, _)| centre)
    };
    let labels: Vec<usize> = points.par_chunks(d).map(nearest).collect();
    let mut sums: Vec<f64> = memory::zeroed(count * d, WHAT)?;
    let mut sizes: Vec<f64> = memory::zeroed(count, WHAT)?;
    for (point, &label) in points.chunks(d).zip(&labels) {
        sizes[label] += 1.0;
        sums[label * d..(label + 1) * d].iter_mut().zip(point).for_each(|(sum, &v)| *sum += f64::from(v));
    }
    for ((centre, sum), &size) in centres.chunks_mut(d).zip(sums.chunks(d)).zip(&sizes) {
        if size > 0.0 {
            centre.iter_mut().zip(sum).for_each(|(v, sum)| *v = (sum / size) as f32);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_blob_has_a_centre() {
        let blob = |j: usize| [(j % 5) as f64 * 100.0 + (j % 7) as f64 * 0.1, 1e6 + (j % 5) as f64];
        let centroids: Vec<f64> = (0..3_000).flat_map(blob).collect();
        let centres = centres(&centroids, 2, 8, 1.0 / 512.0).unwrap();
        assert_eq!(centres.len(), 16);
        for blob in 0..5 {
            let near = |c: &[f64]| (c[0] - blob as f64 * 100.0).abs() < 2.0 && (c[1] - 1e6 - blob as f64).abs() < 2.0;
            assert!(centres.chunks(2).any(near), "{blob}: {centres:?}");
        }
    }

    #[test]
    fn equal_centroids_are_no_trouble() {
        assert_eq!(centres(&[3.0f32; 40], 4, 3, 1.0).unwrap(), [3.0; 12]);
        assert_eq!(centres(&[1.0f32, 2.0], 1, 1, 1.0).unwrap(), [1.5]);
    }
}
