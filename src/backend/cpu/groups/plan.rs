//! The decision before the first assign: a tree, groups of rows, integer copies, or a comparison with all centroids.
//!
//! ```text
//! without a sample:  a tree, if it is certain;  all centroids, if there are few rows or clusters
//! copies           = integer copies, if the machine multiplies them fast and they fit in memory
//! groups           = the cheapest groups of the sample, if they pay                                        (`choose.rs`)
//! a tree, if the sample visits fewer of its leaves and nodes than groups leave scores
//! no copies, if a row is compared with too few centroids;  then groups are chosen again for rows without copies
//! neither groups nor copies:  all centroids.    Copies alone:  one group
//! ```

use super::GROUPS;
use super::grouped::Grouped;
use super::int_dot::{ByCopies, Copies};
use super::method::MethodDecision;
use super::partition::Partition;
use super::sorted::{RowLayout, Sorted};
use super::state::State;
use super::step::GroupStep;
use super::tuning::{self, MOST_BYTES, Sorting, fewest_dot_centroids};
use super::view::{SessionView, UseGroups, UseIntDot};
use crate::backend::cpu::filter::{GROUP, ScoreForm};
use crate::backend::cpu::pass::WorkerBuffers;
use crate::backend::cpu::tree::{self, CentroidTree, Visits};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::simd::DotUnit;

/// Groups, and what a sample of the rows says of them.
pub struct PlannedGroups<T> {
    pub groups: Partition<T>,
    /// For each group, about the largest distance of its rows from its point: that of the sample, with some room.
    pub radii: Vec<f64>,
    /// The share of the scores that remains. After `Trials::see` it has the scores of empty places too.
    pub share: f64,
    /// About the sum of the squared distances of the sample from the points.
    pub squares: f64,
}

/// What the sample recommends. Neither groups nor copies: a comparison with all centroids.
pub struct Choice<T> {
    pub found: Option<PlannedGroups<T>>,
    /// The share of the scores of the sample that remains by groups, if groups were tried.
    pub share: Option<f64>,
    pub copies: Option<Copies>,
    /// Whether sorted rows are kept.
    pub is_kept: bool,
}

/// The number of groups, and of the centroids that a row is compared with.
#[derive(Clone, Copy)]
struct Extent {
    groups: usize,
    compared: f64,
}

impl<T: Float> SessionView<'_, '_, T> {
    /// What is decided without a look at the rows. None: a sample decides.
    pub fn plan_without_sample(&self) -> Option<MethodDecision> {
        let ([k, d], forced) = ([self.layout.k, self.layout.d], self.forced);
        let is_asked = forced.groups != UseGroups::Auto || forced.copies != UseIntDot::Auto;
        let is_small = self.rows == 0 || !(is_asked || self.tries.groups || self.tries.copies);
        let is_forced = forced.groups == UseGroups::Tree && tree::is_possible(d);
        if tree::is_certain(k, d) || is_small && tree::pays(k, d) || is_forced {
            return Some(MethodDecision::Tree);
        }
        is_small.then_some(MethodDecision::ALL)
    }
}

/// Decides by a sample of the rows, `(rows, d)`.
#[derive(Clone, Copy)]
pub struct Planner<'p, 'a, T> {
    pub view: SessionView<'p, 'a, T>,
    pub centroids: &'p [T],
    pub sample: &'p [T],
}

impl<T: Float> Planner<'_, '_, T> {
    pub fn by_columns(&self) -> bool {
        self.view.part.features.is_by_columns()
    }

    /// Decides, and takes the memory for the decision.
    pub fn plan(&self, workers: &mut [WorkerBuffers<T>]) -> Result<State<T>> {
        let Some(Choice { found, share, mut copies, is_kept }) = self.choose()? else {
            return Ok(State::Without(MethodDecision::Tree));
        };
        let extent = self.extent(&found);
        let plan = match (&found, share) {
            (Some(found), Some(remains)) => MethodDecision::Groups { groups: found.groups.count(), remains, copies: None },
            _ => MethodDecision::All { remains: share, copies: None },
        };
        let planned = match found {
            Some(found) => found,
            None if copies.is_some() => self.one_group()?,
            None => return Ok(State::Without(plan)),
        };
        if let Some(copies) = &mut copies {
            self.choose_unit(copies, &planned.groups, extent)?;
        }
        Ok(State::Grouped(Grouped::new(self.view, workers, planned, copies, is_kept, plan)?))
    }

    /// Weighs groups, copies and a tree against each other. None: a tree.
    fn choose(&self) -> Result<Option<Choice<T>>> {
        let mut copies = self.possible_copies()?;
        let sorting = self.view.layout.sorting(copies.is_some(), self.plain_rows_fit(1)?);
        let (mut found, mut share) = self.choose_groups(sorting)?;
        if self.suits_tree(found.as_ref().map_or(1.0, |found| found.share))? {
            return Ok(None);
        }
        let extent = self.extent(&found);
        let mut left_out = None;
        if let Some(Copies { unit, .. }) = copies
            && !self.copies_suit(unit, extent)?
        {
            left_out = copies.take();
        }
        let is_kept = self.plain_rows_fit(extent.groups)? || copies.is_some();
        let without_copies = self.view.layout.sorting(false, is_kept);
        if copies.is_none() && sorting != without_copies && sorting != Sorting::ForOneAssign {
            // Groups that were chosen for copies may not pay without. Then all rows together may have copies.
            let (again, of_again) = self.choose_groups(without_copies)?;
            (found, share) = (again, of_again.or(share));
            if let Some(Copies { unit, .. }) = left_out
                && found.is_none()
                && self.copies_suit(unit, self.extent(&None))?
            {
                copies = left_out;
            }
        }
        // Rows that have copies are always kept.
        let is_kept = is_kept || copies.is_some();
        Ok(Some(Choice { found, share, copies, is_kept }))
    }

    /// A row is compared at least with one panel, whose places may not all have a centroid.
    fn extent(&self, found: &Option<PlannedGroups<T>>) -> Extent {
        let (groups, share) = found.as_ref().map_or((1, 1.0), |found| (found.groups.count(), found.share));
        Extent { groups, compared: (share * self.view.layout.k as f64).max(GROUP as f64) }
    }

    /// All centroids in one group, whose rows may be anywhere.
    fn one_group(&self) -> Result<PlannedGroups<T>> {
        let SessionView { set, layout, .. } = self.view;
        let groups = Partition::new(self.centroids, layout.d, 1, set, 1)?;
        Ok(PlannedGroups { groups, radii: memory::filled(1, f64::INFINITY, GROUPS)?, share: 1.0, squares: 0.0 })
    }

    /// Whether a sample says that a tree of the centroids takes less time than groups that leave this share of the scores.
    pub fn suits_tree(&self, remains: f64) -> Result<bool> {
        let SessionView { set, layout, forced, .. } = self.view;
        if forced.groups != UseGroups::Auto || !tree::pays(layout.k, layout.d) {
            return Ok(false);
        }
        let tree = CentroidTree::new(self.centroids, layout.d)?;
        let visits = set.run(Visits { tree: &tree, centroids: self.centroids, rows: self.sample }) as f64;
        let rows = (self.sample.len() / layout.d).max(1) as f64;
        Ok(visits * tuning::OF_VISIT < rows * (remains * layout.k as f64 + tuning::OF_GROUPED))
    }

    /// These groups, and what the sample says of them.
    pub fn planned(&self, groups: Partition<T>) -> Result<PlannedGroups<T>> {
        let step = GroupStep::new(&groups, self.centroids, false, None, self.view.set, self.view.layout.workers)?;
        let (radii, [share, squares]) = self.look_at_sample(&step)?;
        Ok(PlannedGroups { groups, radii, share, squares })
    }

    fn may_keep(&self) -> bool {
        self.view.forced.groups != UseGroups::AlwaysSort
    }

    /// Whether all sorted rows fit in the memory that they may have.
    fn fit(&self, layout: RowLayout, lanes: Option<usize>, groups: usize) -> Result<bool> {
        let (d, parts) = (self.view.layout.d, self.view.parts(groups)?);
        let bytes = parts.iter().map(|part| Sorted::<T>::bytes([d, part.physical.len(), groups], layout, lanes));
        Ok(bytes.fold(0, usize::saturating_add) <= MOST_BYTES)
    }

    fn plain_rows_fit(&self, groups: usize) -> Result<bool> {
        let layout = Sorted::<T>::layout([true, false, self.by_columns()], self.view.layout.d);
        Ok(self.may_keep() && self.fit(layout, None, groups)?)
    }

    fn copied_rows_fit(&self, unit: DotUnit, groups: usize) -> Result<bool> {
        let d = self.view.layout.d;
        self.fit(Sorted::<T>::layout([true, true, self.by_columns()], d), Some(unit.lanes(d)), groups)
    }

    /// Integer copies, if the machine and memory allow them.
    fn possible_copies(&self) -> Result<Option<Copies>> {
        let SessionView { layout, statistics, tries, forced, .. } = self.view;
        let unit = match forced.copies {
            UseIntDot::Auto if tries.copies => DotUnit::fastest(),
            UseIntDot::Auto | UseIntDot::Never => None,
            UseIntDot::Always(unit) | UseIntDot::Twice(unit) => Some(unit.or_emulated()),
        };
        let Some(unit) = unit.filter(|_| ScoreForm::of::<T>(layout.d) == ScoreForm::Product && self.may_keep()) else {
            return Ok(None);
        };
        let copies = Copies::new(unit, statistics, layout.d);
        Ok(if copies.is_some() && self.copied_rows_fit(unit, 1)? { copies } else { None })
    }

    fn copies_have_room(&self, unit: DotUnit, Extent { groups, compared }: Extent) -> Result<bool> {
        let lanes = unit.lanes(self.view.layout.d);
        Ok(ByCopies::has_room(groups as f64 * compared, lanes) && self.copied_rows_fit(unit, groups)?)
    }

    /// Whether a row is compared with enough centroids for copies, and whether there is room for them.
    fn copies_suit(&self, unit: DotUnit, extent: Extent) -> Result<bool> {
        let is_forced = self.view.forced.copies != UseIntDot::Auto;
        let has_many = is_forced || extent.compared >= fewest_dot_centroids(self.view.layout.d);
        Ok(has_many && self.copies_have_room(unit, extent)?)
    }

    /// Copies have words in place of bytes where the sample says so.
    fn choose_unit(&self, copies: &mut Copies, groups: &Partition<T>, extent: Extent) -> Result<()> {
        if self.view.forced.copies == UseIntDot::Auto
            && !copies.unit.is_for_words()
            && let [_, Some(words)] = DotUnit::detect()
            && self.copies_have_room(words, extent)?
            && self.suits_words(groups, extent.compared)?
        {
            copies.unit = words;
        }
        Ok(())
    }
}
