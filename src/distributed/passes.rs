//! Preparation over parts: every pass asks all parts, and merges what they say.

use super::link::{Link, PARTS};
use super::message::{Call, Reply};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::names::Names;
use crate::input::tile::WeightScale;
use crate::input::transform::RowTransform;
use crate::statistics::factors::DigitCounts;
use crate::statistics::given::{BadCounts, Given, checked_count};
use crate::statistics::passes::Passes;
use crate::statistics::quanta::Counts;
use crate::statistics::refused::Refused;
use crate::statistics::survey::{Extent, Survey};
use crate::statistics::variance::Moments;

/// The rows of all parts.
pub struct RemotePasses<'l, 'e>(pub &'l Link<'e>);

/// As [`RemotePasses`], as they were given.
struct RemoteRows<'l, 'e>(&'l Link<'e>);

/// Takes the value of one kind of reply.
macro_rules! taken {
    ($kind:ident) => {
        |reply| match reply {
            $crate::distributed::message::Reply::$kind(value) => Some(value),
            _ => None,
        }
    };
}
pub(super) use taken;

/// Takes a reply without a value.
pub(super) fn done(reply: Reply) -> Option<()> {
    matches!(reply, Reply::Done).then_some(())
}

/// Merges the lists of all parts, item by item.
fn merged<C>(lists: Vec<Vec<C>>, merge: impl Fn(&mut C, &C)) -> Vec<C> {
    let merge_lists = |mut all: Vec<C>, list: Vec<C>| {
        all.iter_mut().zip(&list).for_each(|(a, b)| merge(a, b));
        all
    };
    lists.into_iter().reduce(merge_lists).unwrap_or_default()
}

/// Adds up counts.
fn add<const N: usize>(all: &mut [u64; N], more: &[u64; N]) {
    all.iter_mut().zip(more).for_each(|(a, b)| *a += b);
}

impl RemotePasses<'_, '_> {
    fn merged_survey(&self, call: Call) -> Result<Survey> {
        let surveys = self.0.ask_all(call, taken!(Survey))?;
        let merge = |mut all: Survey, survey: Survey| {
            all.merge(&survey);
            all
        };
        surveys.into_iter().reduce(merge).map_or_else(|| Survey::empty(self.0.facts[0].names.len()), Ok)
    }
}

impl<T: Float> Passes<T> for RemotePasses<'_, '_> {
    fn given(&self) -> Box<dyn Given + '_> {
        Box::new(RemoteRows(self.0))
    }

    fn survey(&mut self) -> Result<Survey> {
        self.merged_survey(Call::Survey)
    }

    fn skip_bad(&mut self, _: Survey) -> Result<Survey> {
        self.merged_survey(Call::SkipBad)
    }

    fn round_weights(&mut self, scale: WeightScale) -> Result<()> {
        self.0.ask_all(Call::RoundWeights(scale), done).map(drop)
    }

    fn weighted_extents(&mut self) -> Result<Vec<Extent>> {
        Ok(merged(self.0.ask_all(Call::WeightedExtents, taken!(Extents))?, Extent::merge))
    }

    fn count_small(&mut self, largest: &[Option<f64>], weighted: bool) -> Result<Vec<Counts>> {
        let call = Call::CountSmall { largest: memory::copied(largest, PARTS)?, weighted };
        Ok(merged(self.0.ask_all(call, taken!(Counts))?, add))
    }

    fn variance_sums(&mut self, moments: &[Moments]) -> Result<Vec<[i128; 2]>> {
        let sums = self.0.ask_all(Call::VarianceSums(memory::copied(moments, PARTS)?), taken!(Moments))?;
        Ok(merged(sums, |a, b| {
            a[0] += b[0];
            a[1] += b[1];
        }))
    }
}

impl Given for RemoteRows<'_, '_> {
    fn names(&self) -> &Names {
        &self.0.facts[0].names
    }

    fn row_transform(&self) -> Option<&RowTransform> {
        self.0.row_transform.as_deref()
    }

    fn is_weighted(&self) -> bool {
        self.0.facts[0].weighted
    }

    fn count(&self) -> Result<u64> {
        checked_count(self.0.facts.iter().map(|facts| facts.rows).sum())
    }

    fn negative_weight(&self) -> Result<Option<(u64, f64)>> {
        let found = self.0.ask_all(Call::NegativeWeight, taken!(NegativeWeight))?;
        let starts = self.0.facts.iter().scan(0, |next, facts| {
            *next += facts.rows;
            Some(*next - facts.rows)
        });
        Ok(found.into_iter().zip(starts).find_map(|(found, start)| found.map(|(row, got)| (start + row, got))))
    }

    fn bad_counts(&self) -> Result<Vec<BadCounts>> {
        Ok(merged(self.0.ask_all(Call::BadCounts, taken!(BadCounts))?, add))
    }

    fn refused(&self) -> Result<Refused> {
        Ok(self.0.ask_all(Call::Refused, taken!(Refused))?.into_iter().fold(Refused::default(), Refused::and))
    }

    fn nonzero(&self) -> Result<Vec<[bool; 2]>> {
        Ok(merged(self.0.ask_all(Call::Nonzero, taken!(Nonzero))?, |a, b| {
            a[0] |= b[0];
            a[1] |= b[1];
        }))
    }

    fn weights_below(&self, bound: f64, _: usize) -> Result<u64> {
        Ok(self.0.ask_all(Call::WeightsBelow(bound), taken!(Number))?.into_iter().sum())
    }

    fn digits(&self, prefixes: &[[u64; 2]], shift: u32, _: usize) -> Result<Vec<DigitCounts>> {
        let call = Call::CountDigits { prefixes: memory::copied(prefixes, PARTS)?, shift };
        let counts = merged(self.0.ask_all(call, taken!(Digits))?, |a, b| *a += b);
        memory::copied(counts.as_chunks().0, PARTS)
    }
}
