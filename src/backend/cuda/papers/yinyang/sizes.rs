//! The tiles and groups of a fit with carried bounds, and the memory that they take.

use super::TILE_ROWS;
use crate::backend::cuda::arguments::{BoundsControl, Drifted, Listed, Terms};
use crate::backend::cuda::device::{buffers, product};
use crate::backend::cuda::shape::{FitShape, GpuSize, padded};
use crate::backend::cuda::step::filter::FilterSpec;
use crate::backend::cuda::step::tiled::{TileShape, Tiled};

/// `MOST_GROUPS` of `kernels/papers/yinyang.cuh`: a row has a bit for each.
const MOST_GROUPS: usize = 64;

/// The sizes of a fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct YinyangSizes {
    pub n: usize,
    pub d: usize,
    pub k: usize,
    pub k_padded: usize,
    pub tile: TileShape,
    /// Tiles of a group.
    pub group_tiles: usize,
    pub groups: usize,
    /// Bytes of a value of a row.
    value: usize,
}

impl YinyangSizes {
    /// Tiles are narrow where there are few centroids, so that groups are small.
    pub fn new(shape: &FitShape, gpu: GpuSize) -> Self {
        let FitShape { chunk: n, d, k, .. } = *shape;
        let variant = match k {
            0..=256 => Tiled::WIDTH_32,
            257..=2_048 => Tiled::WIDTH_64,
            _ => Tiled::for_model(d, k),
        };
        let tile = variant.tile(d, k, gpu.shared);
        let tiles = k.div_ceil(tile.width);
        let group_tiles = tiles.div_ceil(MOST_GROUPS).max(1);
        let (k_padded, value) = (tile.filter(k).k_padded, shape.value_bytes());
        Self { value, n, d, k, k_padded, tile, group_tiles, groups: tiles.div_ceil(group_tiles) }
    }

    pub fn filter(&self) -> FilterSpec {
        self.tile.filter(self.k)
    }

    /// Tiles of centroids.
    pub fn tiles(&self) -> usize {
        self.k.div_ceil(self.tile.width)
    }

    /// The stride of the copies of rows.
    pub fn stride(&self) -> usize {
        padded(self.n, TILE_ROWS)
    }

    /// Bounds of groups that a row has.
    pub fn row_width(&self) -> usize {
        if self.groups > 1 { padded(self.groups, 4) } else { 0 }
    }

    /// Centroids whose copies lie in the order of their groups.
    fn placed(&self) -> usize {
        if self.groups > 1 { self.k_padded } else { 0 }
    }
}

buffers! {
    /// What belongs to rows.
    pub struct RowBuffers = "the bounds of the rows" (sizes: &YinyangSizes) {
        /// `(n, 2)`.
        bounds: f32 [product([sizes.n, 2])],
        group_bounds: f32 [product([sizes.n, sizes.row_width()])],
        own_labels: u16 [sizes.n],
        doubtful: u32 [sizes.n],
        listed: Listed [sizes.n],
        /// `(d, stride)`.
        x: f32 [product([sizes.d, sizes.stride()])],
        terms: Terms [sizes.stride()],
        unions: u64 [sizes.n.div_ceil(TILE_ROWS)],
        row_of_place: u32 [sizes.n],
        /// `(d, stride)`: the rows by place.
        moved: u8 [product([sizes.d, sizes.stride(), sizes.value])],
    }
}

buffers! {
    /// What belongs to centroids.
    pub struct CentroidBuffers<T> = "the bounds of the centroids" (sizes: &YinyangSizes) {
        /// `(k, d)`.
        kept: T [product([sizes.k, sizes.d])],
        moved: Drifted [sizes.k],
        groups_moved: Drifted [sizes.groups + 1],
        largest: u64 [sizes.groups],
        order: u32 [sizes.k_padded],
        places: u32 [sizes.k],
        counts: u32 [sizes.k],
        /// `(d, k padded)`.
        copies: f32 [product([sizes.d, sizes.placed()])],
        half_squares: f32 [sizes.placed()],
        control: BoundsControl [1],
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;
    use crate::backend::cuda::step::choice::tests::{H200, shape};

    unit_test!(groups_are_whole_tiles);
    fn groups_are_whole_tiles() {
        for k in [1, 31, 32, 33, 256, 257, 1_000, 2_048, 2_049, 5_000, 8_192, 8_193, 65_536] {
            for d in [1, 64, 65, 129, 4_000] {
                let sizes = YinyangSizes::new(&shape(1_000, d, k), H200);
                let YinyangSizes { tile: TileShape { width, panel }, group_tiles, groups, k_padded, .. } = sizes;
                assert!((1..=MOST_GROUPS).contains(&groups), "{k}");
                assert!(groups * group_tiles * width >= k && (groups - 1) * group_tiles * width < k, "{k}");
                assert!(k_padded >= sizes.tiles() * width && k_padded % 128 == 0);
                assert!(panel == 0 || d > width && width > 32);
            }
        }
        let groups = |k| YinyangSizes::new(&shape(1_000, 40, k), H200).groups;
        assert_eq!([groups(32), groups(256), groups(1_000), groups(5_000), groups(40_000)], [1, 8, 16, 40, 63]);
    }
}
