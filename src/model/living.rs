//! What a model keeps from update to update: the units of its sums, the sums, and what was done to them.
//!
//! ```text
//! decay     factor = factor * decay                                 of every cluster; its integers stay
//! add       a cluster with rows in the table: weight, sums = rint(weight * factor), rint(sums * factor); factor = 1
//!           then the table is added
//! widen     weight, sums = rint of the same numbers in coarser units
//! ```
//! A decay does not touch the integers of a cluster that gets no rows. So its centroid, their quotient, stays bit for bit. If every
//! decay rounded the integers, the centroid would drift.
//!
//! With `a` as the factor of each decay, a mean differs from the one of fractions by at most `1 + 1 / (1 - a)` quanta and one
//! rounding, for clusters whose weight is at least 2^-20 of the largest.

use super::quanta::Quanta;
use super::sums::{Decay, SUMS, Start, Sums, Update, invalid};
use crate::base::error::{KMeansError, Result};
use crate::base::memory;
use crate::exact::fixed::{TWO_LIMB_BITS, coarser, power_of_two, times};

/// What a model knows beside its centroids.
#[derive(Debug, Clone, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Living {
    pub quanta: Option<Quanta>,
    /// The sums that the model keeps, under its last labels, before their factors.
    pub kept: Option<Sums>,
    /// Whether they were multiplied by a number below 1. Then the weight of single rows is not in them any more.
    pub decayed: bool,
    /// Encoded by `wire.rs`.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub later: Later,
}

/// What the first format of a model's bytes does not have.
#[derive(Debug, Clone, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Later {
    /// For each cluster, what its weight and its sums are multiplied by. Empty if all are 1.
    pub factors: Vec<f64>,
    /// The keys of the batches that were added and not removed since, in ascending order.
    pub added: Vec<String>,
    /// The keys of the batches that were removed, in ascending order.
    pub removed: Vec<String>,
    /// The units of the fit, if the model was widened. Where a column's sums were all 0: those that they had last.
    pub first: Option<Quanta>,
    /// The fingerprints that the model had before it was widened.
    pub earlier: Vec<u64>,
    /// The weight of each cluster in the fit. Empty if the rows had no weights, and if there are sums, which say it.
    pub weights: Vec<f64>,
}

/// Sums in coarser units, or the column and the largest exponent that it can have.
type Wide = std::result::Result<Living, (usize, i32)>;

impl Later {
    fn copied(&self) -> Result<Self> {
        Ok(Self {
            factors: memory::copied(&self.factors, SUMS)?,
            added: memory::texts(&self.added, SUMS)?,
            removed: memory::texts(&self.removed, SUMS)?,
            first: self.first.clone(),
            earlier: memory::copied(&self.earlier, SUMS)?,
            weights: memory::copied(&self.weights, SUMS)?,
        })
    }
}

impl Living {
    /// Whether there is nothing that the first format encodes.
    #[cfg(any(feature = "arrow", feature = "polars"))]
    pub(super) fn is_empty(&self) -> bool {
        self.quanta.is_none() && self.kept.is_none() && !self.decayed
    }

    /// What an update starts from. `none`: the sums of no rows.
    pub(super) fn started(&self, start: Start, none: impl FnOnce() -> Result<Sums>) -> Result<Self> {
        let later = self.later.copied()?;
        let (kept, decayed, later) = match (start, &self.kept) {
            (Start::Zero, _) => (none()?, false, Later { earlier: later.earlier, ..Later::default() }),
            (Start::Kept, Some(kept)) => (kept.copied()?, self.decayed, later),
            (Start::Kept, None) => {
                let expected = "\"zero\" for a model that keeps no sums: those of KMeans(keep_sums=True) do";
                return Err(invalid("start", expected, "\"kept\""));
            }
        };
        Ok(Self { quanta: self.quanta.clone(), kept: Some(kept), decayed, later })
    }

    /// Decays what is kept, adds sums and takes away sums.
    pub(super) fn update(&mut self, update: &Update<'_>) -> Result<()> {
        let Update { sums, removed, start, decay, batch, removed_batch } = *update;
        for (name, key, table) in [("batch", batch, sums), ("removed_batch", removed_batch, removed)] {
            if let (Some(key), None) = (key, table) {
                let of = if name == "batch" { "sums" } else { "removed" };
                return Err(invalid(name, &format!("a key for a table of {of}"), format!("{key:?} without a table")));
            }
        }
        if let Some(decay) = decay {
            self.decay(decay)?;
            self.decayed |= decay.factor < 1 << decay.shift && start == Start::Kept;
        }
        if let Some(key) = batch {
            self.check_key("batch", key)?;
            insert(&mut self.later.added, key)?;
        }
        if let Some(sums) = sums {
            self.add(sums)?;
        }
        let Some(removed) = removed else { return Ok(()) };
        if self.decayed {
            let expected = "none after a decay: how much of a row is left in the sums is not known";
            return Err(invalid("removed", expected, "sums"));
        }
        if let Some(key) = removed_batch {
            match self.later.added.binary_search_by(|known| known[..].cmp(key)) {
                Ok(_) if batch == Some(key) => {
                    return Err(invalid("removed_batch", "the key of another batch than batch", key));
                }
                Ok(at) => drop(self.later.added.remove(at)),
                Err(_) => self.check_key("removed_batch", key)?,
            }
            insert(&mut self.later.removed, key)?;
        }
        self.check_fingerprint(removed.fingerprint)?;
        self.kept.as_mut().map_or(Ok(()), |total| total.subtract(removed))?;
        self.forget_weightless(Some(removed));
        Ok(())
    }

    /// Refuses a key that was taken before.
    fn check_key(&self, name: &'static str, key: &str) -> Result<()> {
        for (keys, done) in [(&self.later.added, "added"), (&self.later.removed, "removed")] {
            if keys.binary_search_by(|known| known[..].cmp(key)).is_ok() {
                let expected = "a key that this model has not taken yet";
                return Err(invalid(name, expected, format!("{key:?}, which was {done}: each batch counts once")));
            }
        }
        Ok(())
    }

    /// Refuses sums that are not of this model's units.
    pub(crate) fn check_fingerprint(&self, got: u64) -> Result<()> {
        let Some(own) = self.kept.as_ref().map(|kept| kept.fingerprint).filter(|own| *own != got) else { return Ok(()) };
        Err(self.refused(own, got))
    }

    /// The error for sums of another model, or of this one before it was widened.
    pub(crate) fn refused(&self, own: u64, got: u64) -> KMeansError {
        let expected = format!("sums of this model (fingerprint {own})");
        if self.later.earlier.contains(&got) {
            let got = "those from before the model was widened: make the table again, by sums of the wider model";
            return invalid("sums", &expected, got);
        }
        invalid("sums", &expected, format!("those of another: {got}"))
    }

    /// What the sums of a cluster are multiplied by.
    pub(super) fn factor(&self, j: usize) -> f64 {
        self.later.factors.get(j).copied().unwrap_or(1.0)
    }

    /// The weight of each cluster, if the model keeps sums.
    pub(super) fn weights(&self) -> Option<impl Iterator<Item = f64>> {
        let unit = power_of_two(self.quanta.as_ref().and_then(|quanta| quanta.weights).unwrap_or(0) - 53);
        let weight = move |(j, weight): (usize, &i128)| *weight as f64 * self.factor(j) * unit;
        self.kept.as_ref().map(|kept| kept.weights.iter().enumerate().map(weight))
    }

    /// Multiplies the factors of all clusters. One without weight has nothing to multiply.
    fn decay(&mut self, Decay { factor, shift }: Decay) -> Result<()> {
        if shift > 32 || factor > 1 << shift {
            return Err(invalid("decay", "at most 1, in at most 32 bits", format!("{factor} / 2^{shift}")));
        }
        let Some(total) = &self.kept else { return Ok(()) };
        let by = factor as f64 * power_of_two(-(shift as i32));
        let decayed = |(j, weight): (usize, &i128)| if *weight == 0 { 1.0 } else { self.factor(j) * by };
        let factors = memory::collected(total.weights.iter().enumerate().map(decayed), SUMS)?;
        self.later.factors = factors;
        self.tidy();
        Ok(())
    }

    /// Adds a table. What is kept of a cluster that it has rows of is multiplied by its factor first.
    pub(super) fn add(&mut self, table: &Sums) -> Result<()> {
        self.check_fingerprint(table.fingerprint)?;
        let Some(total) = &mut self.kept else { return Ok(()) };
        total.check_shape(table)?;
        let d = total.sums.len() / total.rows.len().max(1);
        for (j, factor) in self.later.factors.iter_mut().enumerate().filter(|(_, factor)| **factor != 1.0) {
            let comes = table.sums[j * d..][..d].iter().any(|sum| *sum != 0);
            if comes || table.rows[j] != 0 || table.weights[j] != 0 {
                total.weights[j] = times(total.weights[j], *factor);
                total.sums[j * d..][..d].iter_mut().for_each(|sum| *sum = times(*sum, *factor));
                *factor = 1.0;
            }
        }
        self.forget_weightless(None);
        self.kept.as_mut().map_or(Ok(()), |total| total.add(table))?;
        self.tidy();
        Ok(())
    }

    /// A cluster whose weight was rounded to 0 has no sums. In coarser units, weights and sums of `removed` rows are rounded one by
    /// one. So what is left of none may be a few quanta.
    fn forget_weightless(&mut self, removed: Option<&Sums>) {
        let rounded = self.is_rounded();
        let Some(total) = self.kept.as_mut().filter(|_| rounded) else { return };
        let d = total.sums.len() / total.rows.len().max(1);
        for (j, weight) in total.weights.iter_mut().enumerate() {
            let rounding = removed.map_or(0, |removed| i128::from(removed.rows[j]));
            if total.rows[j] == 0 || (-rounding..0).contains(weight) {
                *weight = 0;
            }
            if *weight == 0 {
                total.sums[j * d..][..d].fill(0);
            }
        }
    }

    /// Factors of 1 need no list.
    pub(super) fn tidy(&mut self) {
        if self.later.factors.iter().all(|factor| *factor == 1.0) {
            self.later.factors = Vec::new();
        }
    }

    /// Whether weights and sums were rounded after rows had been added, so that they may be too small for these rows.
    pub(super) fn is_rounded(&self) -> bool {
        self.decayed || self.later.first.is_some()
    }

    /// The same sums in coarser units. `own`: the fingerprint so far; `fingerprint`: that of the new units. `precision`: bits of
    /// the float type.
    ///
    /// Where earlier sums would keep fewer bits than that below the extent of the fit, or weights fewer than 24: the column (for
    /// weights, the number of columns) and the largest exponent that it can have.
    pub(super) fn widened(&self, to: &Quanta, precision: i32, own: u64, fingerprint: u64) -> Result<Wide> {
        let from = self.quanta.as_ref().unwrap_or(to);
        let (from_scales, to_scales, d) = (from.scales()?, to.scales()?, from.features.len());
        let mut first = self.later.first.clone().unwrap_or_else(|| from.clone());
        let mut kept = self.kept.as_ref().map(Sums::copied).transpose()?;
        for (f, (old, new)) in from_scales.iter().zip(&to_scales).enumerate() {
            let column = || kept.iter().flat_map(|kept| kept.sums.iter().skip(f).step_by(d));
            if column().all(|sum| *sum == 0) {
                first.features[f] = to.features[f];
            } else if from.features[f] != to.features[f] {
                let most = (first.features[f] >> 1) + TWO_LIMB_BITS - precision;
                if new.exponent > most {
                    return Ok(Err((f, most)));
                }
                let shift = new.quantum_exponent() - old.quantum_exponent();
                kept.iter_mut()
                    .flat_map(|kept| kept.sums.iter_mut().skip(f).step_by(d))
                    .for_each(|sum| *sum = coarser(*sum, shift));
            }
        }
        if let (Some(old), Some(new)) = (from.weights, to.weights) {
            if kept.is_none() {
                first.weights = to.weights;
            } else if new > first.weights.unwrap_or(old) + 53 - 24 {
                return Ok(Err((d, first.weights.unwrap_or(old) + 53 - 24)));
            }
            kept.iter_mut().flat_map(|kept| &mut kept.weights).for_each(|weight| *weight = coarser(*weight, new - old));
        }
        if let Some(kept) = &mut kept {
            kept.fingerprint = fingerprint;
        }
        let mut later = self.later.copied()?;
        later.first = Some(first);
        memory::push(&mut later.earlier, own, SUMS)?;
        let mut wide = Self { quanta: Some(to.clone()), kept, decayed: self.decayed, later };
        wide.forget_weightless(None);
        Ok(Ok(wide))
    }

    /// Whether all of it can be that of a model of `k` clusters and `d` features, with this fingerprint.
    #[cfg(feature = "serde")]
    pub(super) fn is_consistent(&self, k: usize, d: usize, fingerprint: impl FnOnce() -> Result<u64>) -> bool {
        let Self { quanta, kept, later: Later { factors, added, removed, first, earlier, weights }, .. } = self;
        let ascending = |keys: &[String]| keys.is_sorted_by(|a, b| a < b);
        let of_clusters =
            |values: &[f64]| values.is_empty() || values.len() == k && values.iter().all(|v| *v >= 0.0 && v.is_finite());
        let own = added.iter().all(|key| removed.binary_search(key).is_err()) && ascending(added) && ascending(removed);
        if !(own && of_clusters(factors) && factors.iter().all(|factor| *factor <= 1.0) && of_clusters(weights)) {
            return false;
        }
        let Some(quanta) = quanta else { return kept.is_none() && first.is_none() && earlier.is_empty() };
        let shape = |kept: &Sums| kept.rows.len() == k && kept.weights.len() == k && Some(kept.sums.len()) == k.checked_mul(d);
        let first =
            first.as_ref().is_none_or(|first| first.is_consistent(d) && first.weights.is_some() == quanta.weights.is_some());
        let kept_sums = kept.as_ref().is_none_or(|kept| shape(kept) && Ok(kept.fingerprint) == fingerprint());
        first
            && quanta.is_consistent(d)
            && kept_sums
            && (kept.is_some() || factors.is_empty() && added.is_empty() && removed.is_empty())
    }
}

/// Inserts a key where it belongs.
fn insert(keys: &mut Vec<String>, key: &str) -> Result<()> {
    let at = keys.partition_point(|known| &known[..] < key);
    memory::push(keys, key.to_owned(), SUMS)?;
    keys[at..].rotate_right(1);
    Ok(())
}
