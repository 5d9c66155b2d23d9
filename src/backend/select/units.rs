//! Numbers as people read them.

/// Groups digits: 1234567 becomes "1,234,567".
pub fn counted(number: u64) -> String {
    let digits = number.to_string();
    let places = digits.len();
    let comma = |i: usize| if i > 0 && (places - i).is_multiple_of(3) { "," } else { "" };
    digits.char_indices().map(|(i, digit)| format!("{}{digit}", comma(i))).collect()
}

/// Writes `value` in the largest unit that it reaches at least once.
fn in_units(value: f64, units: &[(f64, &str)]) -> String {
    let (unit, name) = units.iter().find(|(unit, _)| value >= *unit).or(units.last()).copied().unwrap_or((1.0, ""));
    let value = value / unit;
    if value < 10.0 { format!("{value:.1} {name}") } else { format!("{value:.0} {name}") }
}

#[cfg(feature = "cuda")]
pub fn bytes(value: u64) -> String {
    in_units(value as f64, &[(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")])
}

pub fn duration(seconds: f64) -> String {
    in_units(seconds, &[(3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")])
}
