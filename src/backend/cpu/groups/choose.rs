//! The number of groups: a sample of the rows says how many scores the groups would leave, and at what cost.
//!
//! ```text
//! tried:  few groups of centroids;  one group for each natural cluster of the rows;  many groups of centroids, where few leave
//!         out something, but not most
//! cost  = share of the scores that remain + (lists and copies of centroids, guesses of rows without labels, blocks) / k
//! ```

use super::MOST_GROUPS;
use super::partition::{self, FarApart, Partition};
use super::parts::most_groups;
use super::plan::{PlannedGroups, Planner};
use super::tuning::{self, Sorting, pays};
use super::view::UseGroups;
use crate::backend::cpu::filter::GROUP;
use crate::base::error::Result;
use crate::base::float::Float;

/// The cheapest groups so far.
struct Trials<'p, 'a, T> {
    planner: Planner<'p, 'a, T>,
    sorting: Sorting,
    /// Rows that are sorted together.
    together: usize,
    best: Option<(f64, PlannedGroups<T>)>,
}

impl<T: Float> Trials<'_, '_, T> {
    /// Asks the sample about these groups. Returns the share of the scores that remains.
    fn see(&mut self, groups: Partition<T>) -> Result<f64> {
        let (planner, is_kept, of_rows) = (&self.planner, self.sorting != Sorting::ForOneAssign, !groups.are_of_centroids);
        let (layout, n) = (planner.view.layout, planner.view.rows as f64);
        let (k, mut planned) = (layout.k as f64, planner.planned(groups)?);
        let (groups, panels) = (planned.groups.count(), (planned.groups.order.len() / GROUP) as f64);
        let in_part = if is_kept { layout.rows_of_part::<T>(groups) } else { self.together } as f64 / groups as f64;
        let (groups, times) = (groups as f64, if is_kept || !of_rows { tuning::ITERATIONS } else { 1.0 });
        let of_lists = groups * (panels * tuning::OF_LIST + planned.share * k * tuning::OF_COPY) / n;
        planned.share *= tuning::MORE_SCORES + tuning::EMPTY_PLACES / in_part;
        let share = planned.share;
        let cost = share + (of_lists + groups * tuning::OF_GUESS / times + tuning::OF_BLOCK / in_part) / k;
        if self.best.as_ref().is_none_or(|(least, _)| cost < *least) {
            self.best = Some((cost, planned));
        }
        Ok(share)
    }
}

impl<T: Float> Planner<'_, '_, T> {
    /// The groups, if rows should be compared with near centroids only. The share of the scores of the sample that remains by
    /// groups, if they were tried.
    pub fn choose_groups(&self, sorting: Sorting) -> Result<(Option<PlannedGroups<T>>, Option<f64>)> {
        match self.view.forced.groups {
            UseGroups::Never | UseGroups::Tree => return Ok((None, None)),
            UseGroups::Always => {
                let groups = self.of_centroids(MOST_GROUPS.min(self.view.layout.k / 3))?;
                return Ok((Some(self.planned(groups)?), Some(1.0)));
            }
            UseGroups::AlwaysSort => {
                let rows = self.sample.len() / self.view.layout.d;
                let picked = self.picked(rows.clamp(1, tuning::FEWEST_SPLIT))?;
                return Ok((Some(self.planned(self.of_rows(&picked)?)?), Some(1.0)));
            }
            UseGroups::Auto => {}
        }
        let together = self.rows_together(sorting);
        let most = most_groups::<T>(self.view.layout.d).min(together / tuning::FEWEST_IN_GROUP);
        if !self.view.tries.groups || most < 2 || !self.skipping_pays(1.0, sorting) {
            return Ok((None, None));
        }
        let Some((_, found)) = self.cheapest(sorting, together, most)? else { return Ok((None, None)) };
        let share = found.share;
        Ok((if self.is_worth(&found, sorting)? { Some(found) } else { None }, Some(share)))
    }

    /// The groups of least cost, and their cost. `together`: rows that are sorted together. `most`: the most groups.
    fn cheapest(&self, sorting: Sorting, together: usize, most: usize) -> Result<Option<(f64, PlannedGroups<T>)>> {
        let d = self.view.layout.d;
        let mut trials = Trials { planner: *self, sorting, together, best: None };
        let [few, many] = partition::few_and_many(self.view.layout.k, most);
        let mut share = trials.see(self.of_centroids(few)?)?;
        if let Some(groups) = self.natural_groups(most)? {
            share = share.min(trials.see(groups)?);
        }
        // Many groups leave out more than few, but only where few leave out something, and they take longer.
        let promising = tuning::PROMISING;
        if many > few && (promising.contains(&share) || d < tuning::MOST_SPLIT && share < promising.end) {
            trials.see(self.of_centroids(many)?)?;
        }
        Ok(trials.best)
    }

    /// A group for each natural cluster of the sample. Without natural clusters, rows of few features are split all the same.
    fn natural_groups(&self, most: usize) -> Result<Option<Partition<T>>> {
        let d = self.view.layout.d;
        // A group of rows has some rows of the sample.
        let most = most.min(self.sample.len() / d / tuning::FEWEST_IN_SAMPLE).max(1);
        let picks = match self.picked(most)?.natural() {
            // Smaller groups of many features leave out no more.
            None if d >= tuning::MOST_SPLIT => return Ok(None),
            None => most.min(self.view.layout.k.max(tuning::FEWEST_SPLIT)),
            Some(natural) => natural,
        };
        self.of_rows(&self.picked(picks)?).map(Some)
    }

    /// Whether these groups leave out enough, or make copies much finer.
    fn is_worth(&self, found: &PlannedGroups<T>, sorting: Sorting) -> Result<bool> {
        if self.skipping_pays(1.0 - found.share, sorting) {
            return Ok(true);
        }
        let may_be_finer = sorting == Sorting::ToCopy && found.share < 1.0;
        Ok(may_be_finer && found.squares * tuning::FINER <= self.planned(self.of_centroids(1)?)?.squares)
    }

    /// The most rows that a worker sorts together.
    fn rows_together(&self, sorting: Sorting) -> usize {
        let of_worker = self.view.part.features.n_rows().div_ceil(self.view.layout.workers);
        if sorting == Sorting::ForOneAssign { self.view.sorted_together(of_worker) } else { of_worker }
    }

    fn skipping_pays(&self, skipped: f64, sorting: Sorting) -> bool {
        pays(skipped, [self.view.layout.k, self.view.layout.d], sorting, self.by_columns())
    }

    fn of_centroids(&self, groups: usize) -> Result<Partition<T>> {
        Partition::new(self.centroids, self.view.layout.d, groups, self.view.set, self.view.layout.workers)
    }

    /// Rows of the sample that are far apart.
    fn picked(&self, picks: usize) -> Result<FarApart> {
        FarApart::new(self.sample, self.view.layout.d, picks, self.view.set, self.view.layout.workers)
    }

    /// Groups around the means of the rows of each pick.
    fn of_rows(&self, picked: &FarApart) -> Result<Partition<T>> {
        let d = self.view.layout.d;
        Partition::of_rows(picked.means(self.sample, d)?, self.centroids, d, self.view.set, self.view.layout.workers)
    }
}
