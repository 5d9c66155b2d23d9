//! Groups of centroids that lie together.

use super::GROUPS;
use super::MOST_GROUPS;
use crate::backend::cpu::filter::{GROUP, NOBODY};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;

/// Clusters for each group.
const MEMBERS: usize = 8;
/// Clusters for each group, where there are fewer groups than clusters would make.
const FEW_MEMBERS: usize = 3;

/// Groups of centroids.
pub struct Groups<T> {
    /// For each centroid, its group.
    pub of: Vec<u8>,
    /// `(groups, d)`: the points m.
    pub points: Vec<T>,
    /// The centroids, [`GROUP`] at a time, those of a group one after the other. What fills up a group is [`NOBODY`].
    pub order: Vec<u32>,
    pub d: usize,
}

/// The sum of the squared differences, in any order.
pub fn square<T: Float>(a: &[T], b: &[T]) -> f64 {
    const LANES: usize = 8;
    let mut sums = [0.0f64; LANES];
    let (a_lanes, a_rest) = a.as_chunks::<LANES>();
    let (b_lanes, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a_lanes.iter().zip(b_lanes) {
        for i in 0..LANES {
            let t = a[i].to_f64() - b[i].to_f64();
            sums[i] += t * t;
        }
    }
    let rest = a_rest.iter().zip(b_rest).map(|(a, b)| a.to_f64() - b.to_f64()).map(|t| t * t);
    sums.iter().sum::<f64>() + rest.sum::<f64>()
}

impl<T: Float> Groups<T> {
    /// At most `most` groups of these centroids: each belongs to the nearest of a few that are far apart (Gonzalez 1985).
    pub fn new(centroids: &[T], d: usize, most: usize) -> Result<Self> {
        let k = centroids.len() / d;
        let groups = (k / MEMBERS).max((k / FEW_MEMBERS).min(MOST_GROUPS / 2)).clamp(1, most.max(1));
        let row = |j: usize| &centroids[j * d..][..d];
        let mut of = memory::zeroed::<u8>(k, GROUPS)?;
        let mut nearest = memory::filled(k, f64::INFINITY, GROUPS)?;
        let mut pick = 0;
        for group in 0..groups {
            let mut farthest = (0.0, 0);
            for j in 0..k {
                let s = square(row(pick), row(j));
                if s < nearest[j] {
                    (nearest[j], of[j]) = (s, group as u8);
                }
                if nearest[j] > farthest.0 {
                    farthest = (nearest[j], j);
                }
            }
            pick = farthest.1;
        }
        let mut order = memory::with_room(k + groups * GROUP, GROUPS)?;
        let mut members: Vec<u32> = memory::with_room(k, GROUPS)?;
        let mut points = memory::with_room(groups * d, GROUPS)?;
        let mut sums = memory::zeroed::<f64>(d, GROUPS)?;
        for group in 0..groups {
            members.clear();
            members.extend((0..k as u32).filter(|j| usize::from(of[*j as usize]) == group));
            sums.fill(0.0);
            for j in &members {
                sums.iter_mut().zip(row(*j as usize)).for_each(|(sum, c)| *sum += c.to_f64());
            }
            points.extend(sums.iter().map(|sum| T::from_f64(sum / members.len().max(1) as f64)));
            split(&mut members, centroids, d, GROUP);
            order.extend_from_slice(&members);
            order.resize(order.len().next_multiple_of(GROUP), NOBODY);
        }
        Ok(Self { of, points, order, d })
    }

    pub fn count(&self) -> usize {
        self.points.len() / self.d
    }

    #[inline(always)]
    pub fn point(&self, group: usize) -> &[T] {
        &self.points[group * self.d..][..self.d]
    }
}

/// Puts centroids near each other next to each other: halves them along the feature of the widest range, at multiples of the
/// width.
fn split<T: Float>(members: &mut [u32], centroids: &[T], d: usize, width: usize) {
    if members.len() <= width {
        return;
    }
    let (mut widest, mut range) = (0, -1.0);
    for f in 0..d {
        let values = members.iter().map(|j| centroids[*j as usize * d + f].to_f64());
        let [low, high] = values.fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], v| [low.min(v), high.max(v)]);
        if high - low > range {
            (widest, range) = (f, high - low);
        }
    }
    let half = (members.len().div_ceil(width) / 2) * width;
    members.select_nth_unstable_by(half, |a, b| {
        let [a, b] = [a, b].map(|j| centroids[*j as usize * d + widest].to_f64());
        a.total_cmp(&b)
    });
    let (one, other) = members.split_at_mut(half);
    split(one, centroids, d, width);
    split(other, centroids, d, width);
}
