//! Whether the units that multiply pairs add as `src/certify/halves.rs` assumes: some thousand sums of each, once in a process.

use super::pairs::{Dot, Pair, PairTask, PairUnit, from_bfloat16, packed};
use super::tiles::{self, SIDE, Tiles};

/// Number of lanes that are tried together: a multiple of every vector's.
const PROBED: usize = 16;

/// Numbers of bfloat16: eight bits of significand, and a few binades.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }

    /// `tiny`: of a size whose products are near the least normal number.
    fn number(&mut self, tiny: bool) -> u16 {
        let exponent = if tiny { 127 - 66 } else { 127 - 2 } + self.next() % 4;
        ((exponent << 7 | self.next() & 0x7f) | (self.next() & 1) << 15) as u16
    }
}

/// Each sum may differ from the exact one by two roundings to nearest, and by twice the least normal number.
pub fn pairs(unit: PairUnit) -> bool {
    let mut numbers = Numbers(1);
    (0..256).all(|case| {
        // In every third case all numbers are tiny.
        let [x, c]: [[Pair; PROBED]; 2] = std::array::from_fn(|_| {
            std::array::from_fn(|_| [numbers.number(case % 3 == 1), numbers.number(case % 3 == 1 || case % 5 == 2)])
        });
        // Sums of the same size as the products, and with bits far below those of the products.
        let start: [f32; PROBED] = std::array::from_fn(|lane| {
            let size = if case % 3 == 1 { 0.0 } else { f32::from_bits(u32::from(numbers.number(false)) << 16 | 0x5555) };
            if lane % 2 == 0 { size } else { size.abs() * 8.0 }
        });
        let found = unit.run(Probe { x: &x, c: &c, start: &start });
        (0..PROBED).all(|lane| {
            let products = [0, 1].map(|i| f64::from(from_bfloat16(x[lane][i])) * f64::from(from_bfloat16(c[lane][i])));
            let sum = f64::from(start[lane]);
            let exact = sum + products[0] + products[1];
            let between = (sum + products[0]).abs().max((sum + products[1]).abs());
            let rounding = 2f64.powi(-24) * 1.000_001 * (exact.abs() + between * 1.000_001);
            (f64::from(found[lane]) - exact).abs() <= rounding + 2.0 * f64::from(f32::MIN_POSITIVE)
        })
    })
}

/// Tiles must be the same bits as their emulation, which rounds each sum to nearest.
pub fn tiles(unit: PairUnit) -> bool {
    const ROWS: usize = tiles::STRIDE;
    // SAFETY: these are the only tiles of this thread, and the second ones are emulated.
    let (tiles, emulated) = unsafe { (Tiles::new(unit), Tiles::new(PairUnit::EmulatedTiles)) };
    let (Some(tiles), Some(emulated)) = (tiles, emulated) else { return false };
    let mut numbers = Numbers(2);
    (0..8).all(|case| {
        // In every fourth case all numbers are tiny, and in others products are of different sizes.
        let lanes = if case % 2 == 0 { 3 * SIDE } else { SIDE };
        let mut pairs = |len: usize, odd: bool| -> Vec<f32> {
            let tiny = |lane: usize| case % 4 == 1 || odd && case % 3 == 2 && lane.is_multiple_of(5);
            (0..len).map(|lane| packed([numbers.number(tiny(lane)), numbers.number(tiny(lane + 1))])).collect()
        };
        let (rows, centroids) = (pairs(lanes * ROWS, false), pairs(2 * SIDE * lanes, true));
        let [mut found, mut expected] = [[0.0f32; 2 * SIDE * ROWS]; 2];
        for (tiles, sums) in [(&tiles, &mut found), (&emulated, &mut expected)] {
            tiles.multiply(&rows, ROWS, &centroids, sums);
            // One tile of centroids at a time, too.
            if case % 3 == 1 {
                let half = SIDE * ROWS;
                tiles.multiply(&rows, ROWS, &centroids[SIDE * lanes..], &mut sums[half..]);
            }
        }
        found.iter().zip(&expected).all(|(found, expected)| found.to_bits() == expected.to_bits())
    })
}

struct Probe<'p> {
    x: &'p [Pair; PROBED],
    c: &'p [Pair; PROBED],
    start: &'p [f32; PROBED],
}

impl PairTask for Probe<'_> {
    type Output = [f32; PROBED];

    #[inline(always)]
    fn run<V: Dot>(self) -> [f32; PROBED] {
        let mut found = [0.0; PROBED];
        let (x, c) = (self.x.map(packed), self.c.map(packed));
        for at in (0..PROBED).step_by(V::LANES) {
            // SAFETY: LANES divides PROBED. `PairUnit::run` enables the features.
            unsafe {
                let sum = V::load(self.start.as_ptr().add(at));
                sum.dot(V::load(x.as_ptr().add(at)), V::load(c.as_ptr().add(at))).store(found.as_mut_ptr().add(at));
            }
        }
        found
    }
}
