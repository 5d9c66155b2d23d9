//! Groups of centroids that are near each other, once a fit: the nearer they are, the more often a whole group is too far from a
//! row.
//!
//! All groups but the last have the same number of centroids, because a group is a number of tiles. So the centroids are split at
//! the middle of the direction between two that are far apart, then each half likewise, until a part is one tile. Only speed
//! depends on it.

use crate::base::float::Float;

/// Features of the sketch by which centroids are compared.
const SKETCH: usize = 16;

/// Puts the numbers of centroids (`(k, d)`) in an order such that runs of `tile` of them, and runs of these, are near each other.
pub fn order<T: Float>(numbers: &mut [u32], centroids: &[T], d: usize, tile: usize) {
    let width = d.min(SKETCH);
    // Sums of a few features, with signs that are as good as random: they keep distances roughly.
    let sign = |f: usize| if d > SKETCH && (f as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 63 == 1 { -1.0 } else { 1.0 };
    let signs: Vec<f64> = (0..d).map(sign).collect();
    let mut sketch = vec![0f32; centroids.len() / d * width];
    for (row, sums) in centroids.chunks_exact(d).zip(sketch.chunks_exact_mut(width)) {
        for (values, signs) in row.chunks(width).zip(signs.chunks(width)) {
            for ((value, sign), sum) in values.iter().zip(signs).zip(&mut *sums) {
                *sum += (sign * value.to_f64()) as f32;
            }
        }
    }
    split(numbers, &sketch, width, tile);
}

fn split(numbers: &mut [u32], sketch: &[f32], width: usize, tile: usize) {
    if numbers.len() <= tile {
        return;
    }
    let of = |j: u32| &sketch[j as usize * width..][..width];
    let distance = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
    let farthest =
        |from: &[f32]| numbers.iter().copied().max_by(|a, b| distance(of(*a), from).total_cmp(&distance(of(*b), from)));
    let one = farthest(of(numbers[0])).map_or(&sketch[..width], of);
    let other = farthest(one).map_or(&sketch[..width], of);
    let direction: Vec<f64> = one.iter().zip(other).map(|(a, b)| f64::from(b - a)).collect();
    let along = |j: u32| of(j).iter().zip(&direction).map(|(v, d)| f64::from(*v) * d).sum::<f64>();
    let mut keyed: Vec<(f64, u32)> = numbers.iter().map(|j| (along(*j), *j)).collect();
    let half = numbers.len().div_ceil(tile) / 2 * tile;
    keyed.select_nth_unstable_by(half, |a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    for (number, (_, j)) in numbers.iter_mut().zip(keyed) {
        *number = j;
    }
    let (low, high) = numbers.split_at_mut(half);
    split(low, sketch, width, tile);
    split(high, sketch, width, tile);
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    unit_test!(groups_are_near_each_other);
    fn groups_are_near_each_other() {
        // Eight blobs of 32 centroids, dealt out in turn.
        for d in [1, 3, 40] {
            let centroids: Vec<f32> =
                (0..256u32).flat_map(|j| (0..d).map(move |f| (j % 8 * 100 + (j * 7 + f) % 5) as f32)).collect();
            let mut numbers: Vec<u32> = (0..256).collect();
            order(&mut numbers, &centroids, d as usize, 32);
            for group in numbers.chunks(32) {
                assert!(group.iter().all(|j| j % 8 == group[0] % 8), "{d}: {group:?}");
            }
            numbers.sort_unstable();
            assert!(numbers.iter().copied().eq(0..256));
        }
    }

    unit_test!(any_number_of_centroids_has_an_order);
    fn any_number_of_centroids_has_an_order() {
        for k in [1u32, 31, 33, 100, 1_000] {
            let (mut numbers, centroids): (Vec<u32>, Vec<f64>) = ((0..k).collect(), vec![2.0; k as usize * 2]);
            order(&mut numbers, &centroids, 2, 32);
            numbers.sort_unstable();
            assert!(numbers.iter().copied().eq(0..k));
        }
    }
}
