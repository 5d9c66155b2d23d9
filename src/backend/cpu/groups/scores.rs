//! Numbers that all files on groups share.

/// The name for the groups in errors.
pub const GROUPS: &str = "the groups of near centroids";
/// Rows whose largest distance from a point is known. The product filter compares as many together.
pub const BLOCK: usize = 64;

/// Numbers of scores.
#[derive(Debug, Clone, Copy, Default)]
pub struct Scores {
    /// Scores of rows and listed centroids.
    pub needed: u64,
    /// As `needed`, with the empty places of blocks that are not full.
    pub computed: u64,
    /// Rows that were compared by integer copies, and those of them that were compared again in float32.
    pub by_int_dot: u64,
    pub again: u64,
}

impl Scores {
    /// Counts the scores of some rows and the centroids near them, which may be more places than there are centroids. `rows` and
    /// `computed`: the rows, without and with the empty places of their blocks.
    #[inline(always)]
    pub fn see(&mut self, near: Option<usize>, k: usize, [rows, computed]: [usize; 2]) {
        if let Some(near) = near {
            self.needed += (rows * near.min(k)) as u64;
            self.computed += (computed * near) as u64;
        }
    }

    pub fn add(self, more: Self) -> Self {
        Self {
            needed: self.needed + more.needed,
            computed: self.computed + more.computed,
            by_int_dot: self.by_int_dot + more.by_int_dot,
            again: self.again + more.again,
        }
    }
}

/// The largest of some numbers of at least 0, or NaN if there is one.
#[inline(always)]
pub fn largest(numbers: impl Iterator<Item = f64>) -> f64 {
    numbers.fold(0.0, |most: f64, number| if number <= most || most.is_nan() { most } else { number })
}
