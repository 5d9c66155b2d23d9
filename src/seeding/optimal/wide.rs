//! Unsigned integers of several words of 64 bits, the low word first. Callers know that nothing overflows.

/// `a + b`.
#[inline(always)]
pub fn add<const N: usize>(a: [u64; N], b: [u64; N]) -> [u64; N] {
    let (mut sum, mut carry) = ([0; N], false);
    for i in 0..N {
        let (word, over) = a[i].overflowing_add(b[i]);
        let (word, again) = word.overflowing_add(u64::from(carry));
        (sum[i], carry) = (word, over | again);
    }
    sum
}

/// `a - b`, for `a >= b`.
#[inline(always)]
pub fn sub<const N: usize>(a: [u64; N], b: [u64; N]) -> [u64; N] {
    let (mut difference, mut borrow) = ([0; N], false);
    for i in 0..N {
        let (word, under) = a[i].overflowing_sub(b[i]);
        let (word, again) = word.overflowing_sub(u64::from(borrow));
        (difference[i], borrow) = (word, under | again);
    }
    difference
}

/// `a * b`, in `R` words.
#[inline(always)]
pub fn mul<const A: usize, const B: usize, const R: usize>(a: [u64; A], b: [u64; B]) -> [u64; R] {
    let mut product = [0u64; R];
    for i in 0..A {
        let mut carry = 0u64;
        for j in 0..B.min(R - i) {
            let wide = u128::from(a[i]) * u128::from(b[j]) + u128::from(product[i + j]) + u128::from(carry);
            (product[i + j], carry) = (wide as u64, (wide >> 64) as u64);
        }
        if i + B < R {
            product[i + B] = carry;
        }
    }
    product
}

/// The two words of a number.
#[inline(always)]
pub fn words(a: u128) -> [u64; 2] {
    [a as u64, (a >> 64) as u64]
}

/// As a float64, rounded once.
#[inline(always)]
pub fn to_f64<const N: usize>(a: [u64; N]) -> f64 {
    let Some(top) = a.iter().rposition(|word| *word != 0) else { return 0.0 };
    if top == 0 {
        return a[0] as f64;
    }
    // The two highest words have at least 65 bits, so one bit stands for all below.
    let rest = a[..top - 1].iter().any(|word| *word != 0);
    let high = u128::from(a[top]) << 64 | u128::from(a[top - 1] | u64::from(rest));
    high as f64 * crate::exact::fixed::power_of_two(64 * (top as i32 - 1))
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    unit_test!(arithmetic_is_that_of_128_bits);
    fn arithmetic_is_that_of_128_bits() {
        let mut state = 3u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (u128::from(state) * u128::from(state >> 20)) >> (state % 100)
        };
        for _ in 0..2_000 {
            let (a, b, c) = (next(), next() >> 2, next() >> 2);
            let (low, high) = (b.min(c), b.max(c));
            assert_eq!(add(words(b), words(c)), words(b + c));
            assert_eq!(sub(words(high), words(low)), words(high - low));
            assert_eq!(mul::<1, 1, 2>([a as u64], [b as u64]), words(u128::from(a as u64) * u128::from(b as u64)));
            // (b + c) * a = b * a + c * a.
            let product = |x| mul::<2, 2, 4>(words(x), words(a));
            assert_eq!(product(b + c), add(product(b), product(c)));
            assert_eq!(to_f64(words(a)), a as f64);
            let shifted = [0, 0, words(a)[0], words(a)[1]];
            assert_eq!(to_f64(shifted), a as f64 * 2f64.powi(128));
        }
    }

    unit_test!(a_low_bit_breaks_a_tie);
    fn a_low_bit_breaks_a_tie() {
        assert_eq!(to_f64([0, 0, 1 << 63 | 1 << 10]), 2f64.powi(191));
        assert_eq!(to_f64([1, 0, 1 << 63 | 1 << 10]), 2f64.powi(191) + 2f64.powi(139));
    }
}
