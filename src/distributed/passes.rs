//! Preparation over parts: every pass asks all parts, and merges what they say.

use super::link::{Link, PARTS};
use super::message::{Call, Reply, taken};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::names::Names;
use crate::input::tile::WeightScale;
use crate::input::transform::RowTransform;
use crate::statistics::factors::DigitCounts;
use crate::statistics::given::{BadCounts, Given, checked_count};
use crate::statistics::passes::{Merge, Passes, merged};
use crate::statistics::quanta::Counts;
use crate::statistics::refused::Refused;
use crate::statistics::survey::{Extent, Survey};
use crate::statistics::variance::Moments;

/// The rows of all parts.
pub struct RemotePasses<'l, 'e>(pub &'l Link<'e>);

/// Takes a reply without a value.
fn done(reply: Reply) -> Option<()> {
    matches!(reply, Reply::Done).then_some(())
}

impl RemotePasses<'_, '_> {
    fn survey_by(&self, call: Call) -> Result<Survey> {
        Survey::of_all(self.0.ask_all(call, taken!(Survey))?, self.0.facts[0].names.len())
    }
}

/// Asks all parts, and merges what they say.
fn ask<M: Merge + Default>(link: &Link<'_>, call: Call, take: impl Fn(Reply) -> Option<M>) -> Result<M> {
    Ok(merged(link.ask_all(call, take)?).unwrap_or_default())
}

impl<T: Float> Passes<T> for RemotePasses<'_, '_> {
    fn given(&self) -> Box<dyn Given + '_> {
        Box::new(Self(self.0))
    }

    fn survey(&mut self) -> Result<Survey> {
        self.survey_by(Call::Survey)
    }

    fn skip_bad(&mut self, _: Survey) -> Result<Survey> {
        self.survey_by(Call::SkipBad)
    }

    fn round_weights(&mut self, scale: WeightScale) -> Result<()> {
        self.0.ask_all(Call::RoundWeights(scale), done).map(drop)
    }

    fn weighted_extents(&mut self) -> Result<Vec<Extent>> {
        ask(self.0, Call::WeightedExtents, taken!(Extents))
    }

    fn count_small(&mut self, largest: &[Option<f64>], weighted: bool) -> Result<Vec<Counts>> {
        ask(self.0, Call::CountSmall(memory::copied(largest, PARTS)?, weighted), taken!(Counts))
    }

    fn variance_sums(&mut self, moments: &[Moments]) -> Result<Vec<[i128; 2]>> {
        ask(self.0, Call::VarianceSums(memory::copied(moments, PARTS)?), taken!(Moments))
    }
}

impl Given for RemotePasses<'_, '_> {
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
        let starts = self.0.facts.iter().scan(0, |next, facts| Some(std::mem::replace(next, *next + facts.rows)));
        Ok(found.into_iter().zip(starts).find_map(|(found, start)| found.map(|(row, got)| (start + row, got))))
    }

    fn bad_counts(&self) -> Result<Vec<BadCounts>> {
        ask(self.0, Call::BadCounts, taken!(Counts))
    }

    fn refused(&self) -> Result<Refused> {
        Ok(self.0.ask_all(Call::Refused, taken!(Refused))?.into_iter().fold(Refused::default(), Refused::and))
    }

    fn nonzero(&self) -> Result<Vec<[bool; 2]>> {
        ask(self.0, Call::Nonzero, taken!(Nonzero))
    }

    fn weights_below(&self, bound: f64, _: usize) -> Result<u64> {
        ask(self.0, Call::WeightsBelow(bound), taken!(Number))
    }

    fn digits(&self, prefixes: &[[u64; 2]], shift: u32, _: usize) -> Result<Vec<DigitCounts>> {
        let call = Call::CountDigits(memory::copied(prefixes, PARTS)?, shift);
        memory::copied(ask(self.0, call, taken!(Digits))?.as_chunks().0, PARTS)
    }
}
