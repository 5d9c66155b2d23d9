//! Random numbers, the same on every machine. They choose the rows of samples, and errors of prices.

/// A random number (the mixer of S. Vigna's splitmix64).
pub fn splitmix(seed: u64) -> u64 {
    let mixed = seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// About a normal deviate: a sum of uniform ones.
pub fn normal(state: &mut u64) -> f64 {
    let uniform = |_| {
        *state += 1;
        (splitmix(*state) >> 11) as f64 / (1u64 << 53) as f64
    };
    (0..12).map(uniform).sum::<f64>() - 6.0
}
