//! Whether the units that multiply bytes and words add exactly, as `src/bounds/int_dot.rs` assumes: some thousand sums of each,
//! once in a process.

use super::Vector;
use super::int_dot::{Dot, DotTask, DotUnit, added, added_words, packed};
use super::tiles::{self, SIDE, TOGETHER, TileRegisters};

/// Number of lanes that are tried together: a multiple of every vector's.
const PROBED: usize = 16;

/// Lanes of four bytes.
struct RandomLanes(u64);

impl RandomLanes {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }

    /// A lane of a row. In every third case all bytes are the largest.
    fn row(&mut self, case: usize) -> f32 {
        packed(std::array::from_fn(|_| if case % 3 == 1 { 255 } else { self.next() as u8 }))
    }

    /// A lane of a centroid. In every fourth case all bytes are the largest or the least, so that pairs of products do not fit in
    /// 16 bits.
    fn centroid(&mut self, case: usize) -> f32 {
        packed(std::array::from_fn(|_| match case % 4 {
            1 => 127,
            2 => -127i8 as u8,
            _ => ((self.next() % 255) as i32 - 127) as i8 as u8,
        }))
    }
}

/// The bytes of lanes of words may be any, as those of bytes.
pub fn lanes(unit: DotUnit) -> bool {
    let mut numbers = RandomLanes(1);
    let added = if unit.is_for_words() { added_words } else { added };
    (0..256).all(|case| {
        let x: [f32; PROBED] = std::array::from_fn(|_| numbers.row(case));
        let c: [f32; PROBED] = std::array::from_fn(|_| numbers.centroid(case));
        // Sums of any size: they wrap around.
        let start: [f32; PROBED] = std::array::from_fn(|_| f32::from_bits(numbers.next() << 1));
        let found = unit.run(Probe { x: &x, c: &c, start: &start });
        (0..PROBED).all(|lane| found[lane].to_bits() == added(start[lane], x[lane], c[lane]).to_bits())
    })
}

/// Tiles must be the same bits as their emulation.
pub fn tiles(unit: DotUnit) -> bool {
    const ROWS: usize = tiles::STRIDE;
    // SAFETY: these are the only tiles of this thread, and the second ones are emulated.
    let (tiles, emulated) = unsafe { (TileRegisters::new(unit), TileRegisters::new(DotUnit::EmulatedTiles)) };
    let (Some(mut tiles), Some(mut emulated)) = (tiles, emulated) else { return false };
    let mut numbers = RandomLanes(2);
    (0..12).all(|case| {
        let lanes = if case % 2 == 0 { 3 * SIDE } else { SIDE };
        let rows: Vec<f32> = (0..lanes * ROWS).map(|_| numbers.row(case)).collect();
        let centroids: Vec<f32> = (0..2 * SIDE * lanes).map(|_| numbers.centroid(case)).collect();
        let [mut found, mut expected] = [[0.0f32; 2 * SIDE * ROWS]; 2];
        for (tiles, sums) in [(&mut tiles, &mut found), (&mut emulated, &mut expected)] {
            for first in [0, TOGETHER] {
                tiles.multiply(&rows, first, &centroids, sums, &mut ());
                // One tile of centroids at a time, too.
                if case % 3 == 1 {
                    tiles.multiply(&rows, first, &centroids[SIDE * lanes..], &mut sums[SIDE * ROWS..], &mut ());
                }
            }
        }
        found.iter().zip(&expected).all(|(found, expected)| found.to_bits() == expected.to_bits())
    })
}

struct Probe<'p> {
    x: &'p [f32; PROBED],
    c: &'p [f32; PROBED],
    start: &'p [f32; PROBED],
}

impl DotTask for Probe<'_> {
    type Output = [f32; PROBED];

    #[inline(always)]
    fn run<D: Dot>(self) -> [f32; PROBED] {
        let mut found = [0.0; PROBED];
        for at in (0..PROBED).step_by(D::V::LANES) {
            // SAFETY: LANES divides PROBED.
            unsafe {
                let [sum, x, c] = [self.start, self.x, self.c].map(|lanes| D::V::load(lanes.as_ptr().add(at)));
                D::add(sum, x, c).store(found.as_mut_ptr().add(at));
            }
        }
        found
    }
}
