//! The inertia of each cluster, as one worker adds it up.

use crate::backend::Scales;
use crate::base::error::Result;
use crate::base::memory;
use crate::exact::distances::DistanceScale;

/// Rows whose distances become integers together.
const TOGETHER: usize = 16;
/// Rows whose limbs fit in an int64: each is at most 2^45.
const CAPACITY: usize = 1 << 17;

/// Integer sums of the distances of the rows of each cluster.
#[derive(Debug, Default)]
pub struct Inertia {
    /// `(k)`.
    sums: Vec<u128>,
    /// `(k)`: both limbs of rows that are not in `sums` yet, and their scale.
    limbs: Vec<[i64; 2]>,
    scale: Option<DistanceScale>,
    /// Number of the rows in `limbs`.
    pending: usize,
}

impl Inertia {
    /// The name for the sums in errors.
    pub const WHAT: &str = "the inertia of the clusters";

    /// Starts with 0 for each of `k` clusters.
    pub fn start(&mut self, k: usize) -> Result<()> {
        *self = Self { sums: memory::zeroed(k, Self::WHAT)?, limbs: memory::zeroed(k, Self::WHAT)?, ..Self::default() };
        Ok(())
    }

    /// Adds the weighted distances of at most [`CAPACITY`] rows to the inertia of their clusters.
    #[inline(always)]
    pub fn add(&mut self, weights: &[f64], labels: &[u32], distances: &[f64], scales: Scales<'_>) {
        match scales {
            Scales::Same(scale) => self.add_limbs(weights, labels, distances, scale),
            Scales::Each(scales) => {
                for ((&j, &weight), &distance) in labels.iter().zip(weights).zip(distances) {
                    self.sums[j as usize] += scales[j as usize].quantise(weight, distance);
                }
            }
        }
    }

    /// As [`Inertia::add`], in this scale.
    #[inline(always)]
    fn add_limbs(&mut self, weights: &[f64], labels: &[u32], distances: &[f64], scale: DistanceScale) {
        assert!(labels.len() <= CAPACITY, "limbs must hold the rows");
        if self.pending + labels.len() > CAPACITY || self.scale != Some(scale) {
            self.flush();
            self.scale = Some(scale);
        }
        self.pending += labels.len();
        let whole = labels.len() - labels.len() % TOGETHER;
        for start in (0..whole).step_by(TOGETHER) {
            let (weights, distances) = (&weights[start..][..TOGETHER], &distances[start..][..TOGETHER]);
            let mut limbs = [[0i64; TOGETHER]; 2];
            for i in 0..TOGETHER {
                (limbs[0][i], limbs[1][i]) = scale.limbs(weights[i], distances[i]);
            }
            for (i, label) in labels[start..][..TOGETHER].iter().enumerate() {
                let sums = &mut self.limbs[*label as usize];
                sums[0] += limbs[0][i];
                sums[1] += limbs[1][i];
            }
        }
        for i in whole..labels.len() {
            let (hi, lo) = scale.limbs(weights[i], distances[i]);
            let sums = &mut self.limbs[labels[i] as usize];
            *sums = [sums[0] + hi, sums[1] + lo];
        }
    }

    fn flush(&mut self) {
        let scale = self.scale.take().and_then(|scale| scale.column());
        for (sum, limbs) in self.sums.iter_mut().zip(&mut self.limbs) {
            let [hi, lo] = std::mem::take(limbs);
            *sum += scale.map_or(0, |scale| scale.join(hi, lo) as u128);
        }
        self.pending = 0;
    }

    /// The sums so far. The next ones need [`Inertia::start`].
    pub fn take(&mut self) -> Vec<u128> {
        self.flush();
        std::mem::take(self).sums
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    unit_test!(sums_are_those_of_single_rows);
    fn sums_are_those_of_single_rows() {
        let n = 3 * CAPACITY + 7;
        let distances: Vec<f64> = (0..n).map(|i| [1.0, 0.3, 1e-300, 0.0, 1e300, 0.999][i * 7 % 6]).collect();
        let weights: Vec<f64> = (0..n).map(|i| [1.0, 0.0, 0.7][i % 3]).collect();
        let labels: Vec<u32> = (0..n).map(|i| (i % 5) as u32).collect();
        let mut sums = Inertia::default();
        let [one, other] = [DistanceScale::new(1.0, 1.0), DistanceScale::new(1e-9, 1.0)];
        for scales in [Scales::Same(one), Scales::Same(DistanceScale::NONE), Scales::Each(&[one, other, one, other, one])] {
            sums.start(5).unwrap();
            let mut expected = vec![0u128; 5];
            for (i, j) in labels.iter().enumerate() {
                let scale = if let Scales::Each(scales) = scales { scales[*j as usize] } else { one };
                let scale = if matches!(scales, Scales::Same(DistanceScale::NONE)) { DistanceScale::NONE } else { scale };
                expected[*j as usize] += scale.quantise(weights[i], distances[i]);
            }
            sums.add(&weights[..1_000], &labels[..1_000], &distances[..1_000], scales);
            for start in (1_000..n).step_by(CAPACITY) {
                let rows = start..n.min(start + CAPACITY);
                sums.add(&weights[rows.clone()], &labels[rows.clone()], &distances[rows], scales);
            }
            assert_eq!(sums.take(), expected);
        }
    }
}
