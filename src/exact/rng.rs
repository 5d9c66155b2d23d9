//! Philox4x32-10, a counter-based generator, and the draws that seeding makes with it.
//!
//! Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, doi:10.1145/2063384.2063405.
//! A draw is a pure function of the seed and of four small numbers, so it is the same on every machine and in any order.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// The purpose of a draw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrawPurpose {
    /// `init="random"`.
    Random,
    /// `init="k-means++"`.
    PlusPlus,
    /// One round of k-means||, at most 255.
    Parallel { round: u32 },
    /// The k-means++ among the candidates of k-means||.
    Candidates,
    /// The coins and the acceptances of AFK-MC².
    Chain,
    /// The rows that AFK-MC² proposes.
    Proposals,
    /// `init_sample`.
    Sample,
    /// The seed of a child of a node of a tree.
    Child,
    /// The rows of a mini-batch.
    Batch,
}

impl DrawPurpose {
    /// The first word of the counter.
    pub const fn word(self) -> u32 {
        match self {
            Self::Random => 0,
            Self::PlusPlus => 1,
            Self::Parallel { round } => 2 + 256 * round,
            Self::Candidates => 3,
            Self::Chain => 4,
            Self::Proposals => 5,
            Self::Sample => 6,
            Self::Child => 7,
            Self::Batch => 8,
        }
    }
}

/// The Philox4x32-10 block of a counter and a key.
pub fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let p0 = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
        let p1 = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
        counter = [(p1 >> 32) as u32 ^ counter[1] ^ key[0], p1 as u32, (p0 >> 32) as u32 ^ counter[3] ^ key[1], p0 as u32];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

/// The 64-bit number of draw `(stream, restart, step, trial)` for a seed.
pub fn draw_u64(seed: u64, stream: DrawPurpose, restart: u32, step: u32, trial: u32) -> u64 {
    draw_two(seed, stream, restart, step, trial)[0]
}

/// The two 64-bit numbers of a draw. The first one is that of [`draw_u64`].
pub fn draw_two(seed: u64, stream: DrawPurpose, restart: u32, step: u32, trial: u32) -> [u64; 2] {
    let words = philox([stream.word(), restart, step, trial], [seed as u32, (seed >> 32) as u32]);
    [0, 2].map(|i| u64::from(words[i]) | u64::from(words[i + 1]) << 32)
}

/// `floor(u * total / 2^64)`: a number below `total`, computed exactly (`total < 2^127`).
pub fn below(u: u64, total: u128) -> u128 {
    let (high, low) = (total >> 64, total & u128::from(u64::MAX));
    high * u128::from(u) + ((low * u128::from(u)) >> 64)
}

/// The hash of no values.
pub const NO_VALUES: u64 = 0x243F_6A88_85A3_08D3;

/// The 64-bit hash of the values of a row: starts as [`NO_VALUES`], and takes the values in feature order. Both zeros have the
/// same.
///
/// Rows have it as their number in a draw where the order of the rows does not matter. For one hash, different values give
/// different hashes: multiplications by odd numbers and the xors with shifted bits can be undone.
#[inline(always)]
pub fn hash_value(hash: u64, value: f64) -> u64 {
    hash_bits(hash, (value + 0.0).to_bits())
}

/// As [`hash_value`], for 64 bits of anything.
#[inline(always)]
pub fn hash_bits(hash: u64, bits: u64) -> u64 {
    let first = (hash ^ bits).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let second = (first ^ (first >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    second ^ (second >> 29)
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    unit_test!(known_answers);
    /// The known answers that the authors published with their Random123 library.
    fn known_answers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    unit_test!(streams_never_meet);
    fn streams_never_meet() {
        let rounds = (0..=255).map(|round| DrawPurpose::Parallel { round }.word());
        let others =
            [DrawPurpose::Random, DrawPurpose::PlusPlus, DrawPurpose::Candidates, DrawPurpose::Chain, DrawPurpose::Proposals];
        let others = others.into_iter().chain([DrawPurpose::Sample, DrawPurpose::Batch]);
        let mut words: Vec<u32> = rounds.chain(others.map(DrawPurpose::word)).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), 263);
        assert_eq!(DrawPurpose::Parallel { round: 3 }.word(), 770);
    }

    unit_test!(rows_of_few_values_have_different_hashes);
    fn rows_of_few_values_have_different_hashes() {
        let hash = |row: &[f64]| row.iter().fold(NO_VALUES, |hash, x| hash_value(hash, *x));
        let value = |i: u32| f64::from(i % 7) - 3.0;
        let row = |i: u32| [value(i), value(i / 7), value(i / 49), value(i / 343), value(i / 2_401), value(i / 16_807)];
        let mut hashes: Vec<u64> = (0..7u32.pow(6)).map(|i| hash(&row(i))).collect();
        // Each bit is set in about half of them.
        for bit in 0..64 {
            let ones = hashes.iter().filter(|hash| *hash >> bit & 1 == 1).count() as f64;
            assert!((ones / hashes.len() as f64 - 0.5).abs() < 0.01, "bit {bit}: {ones}");
        }
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), 7usize.pow(6));
        assert_eq!(hash(&[-0.0, 1.5]), hash(&[0.0, 1.5]));
        assert_ne!(hash(&[1.5, 0.0]), hash(&[0.0, 1.5]));
    }

    unit_test!(below_is_below);
    fn below_is_below() {
        assert_eq!(below(u64::MAX, 1), 0);
        assert_eq!(below(1 << 63, 1 << 100), 1 << 99);
        assert_eq!(below(u64::MAX, (1 << 124) + 12345), (1 << 124) + 12345 - (1 << 60) - 1);
    }
}
