//! Numbers as people read them. They are written without memory of their own: a small fit writes some of them, and so does the
//! error that there is no memory.

use std::fmt;

/// A number with its digits in groups: 1234567 becomes "1,234,567".
#[derive(Debug, Clone, Copy)]
pub struct GroupedDigits(pub u64);

impl fmt::Display for GroupedDigits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(number) = *self;
        let groups = number.checked_ilog10().unwrap_or(0) / 3;
        write!(f, "{}", number / 1000u64.pow(groups))?;
        (0..groups).rev().try_for_each(|group| write!(f, ",{:03}", number / 1000u64.pow(group) % 1000))
    }
}

/// A value in the largest unit that it reaches at least once.
#[derive(Debug, Clone, Copy)]
pub struct InUnits {
    value: f64,
    units: &'static [(f64, &'static str)],
}

impl fmt::Display for InUnits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { value, units } = self;
        let (unit, name) = units.iter().find(|(unit, _)| value >= unit).or(units.last()).copied().unwrap_or((1.0, ""));
        let value = value / unit;
        if value < 10.0 { write!(f, "{value:.1} {name}") } else { write!(f, "{value:.0} {name}") }
    }
}

#[cfg(feature = "cuda")]
pub fn bytes(value: u64) -> InUnits {
    InUnits { value: value as f64, units: &[(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")] }
}

pub fn duration(seconds: f64) -> InUnits {
    InUnits { value: seconds, units: &[(3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")] }
}

#[cfg(all(feature = "tests", feature = "cuda"))]
mod tests {
    use super::*;

    unit_test!(figures_read_well);
    fn figures_read_well() {
        let numbers = [0, 7, 999, 1_000, 1_234_567, u64::MAX].map(|number| GroupedDigits(number).to_string());
        assert_eq!(numbers, ["0", "7", "999", "1,000", "1,234,567", "18,446,744,073,709,551,615"]);
        let sizes = [12, 1_500, 149_000_000, 3_000_000_000_000].map(|size| bytes(size).to_string());
        assert_eq!(sizes, ["12 B", "1.5 kB", "149 MB", "3.0 TB"]);
        let times = [2e-7, 0.0123, 8.2, 90.0, 36_000.0].map(|seconds| duration(seconds).to_string());
        assert_eq!(times, ["200 ns", "12 ms", "8.2 s", "1.5 min", "10 h"]);
    }
}
