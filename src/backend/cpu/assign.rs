//! Finds the labels of one tile: first the filter, then reference distances for the rows that the filter leaves open.

use super::centroids::{CentroidTable, Filter, MAX_DIFFERENCE_D};
use super::difference::{Found, assign_difference};
use super::product::{self, ProductScratch};
use super::simd::Vector;
use crate::error::Result;
use crate::float::Float;
use crate::memory;
use crate::tile::Tile;

/// Number of rows in a tile of the difference filter.
const DIFFERENCE_TILE: usize = 512;

/// Buffers to label tiles of one shape.
#[derive(Debug)]
pub struct Assigner {
    found: Found,
    /// Room for one row.
    pub row: Vec<f64>,
    /// The difference kernel's copy of the tile, used where rows must be scaled.
    scaled: Vec<f32>,
    /// At most one entry.
    product: Vec<ProductScratch>,
}

impl Assigner {
    /// Number of rows that a tile of `d` features of type `T` must have room for, if there are `n` rows in all. A multiple of 64.
    pub fn tile_rows<T: Float>(d: usize, n: usize) -> usize {
        let most = if uses_difference::<T>(d) { DIFFERENCE_TILE } else { product::tile_rows(d) };
        most.min(n.next_multiple_of(product::ROWS)).max(product::ROWS)
    }

    /// Buffers for tiles of `tile_rows` rows.
    pub fn new<T: Float>(d: usize, k: usize, tile_rows: usize) -> Result<Self> {
        const WHAT: &str = "a tile's labels";
        let row = memory::zeroed(d, "a row")?;
        if uses_difference::<T>(d) {
            let scaled = memory::with_room(d * tile_rows, WHAT)?;
            return Ok(Self { found: Found::new(tile_rows, k)?, row, scaled, product: Vec::new() });
        }
        let mut product = memory::with_room(1, WHAT)?;
        product.push(ProductScratch::new(d, k)?);
        Ok(Self { found: Found::new(tile_rows, 0)?, row, scaled: Vec::new(), product })
    }

    /// The exact label of every row of the tile.
    #[inline(always)]
    pub fn assign<V: Vector, T: Float>(&mut self, tile: &Tile<T>, table: &CentroidTable<T>) -> &[u32] {
        match (&table.filter, T::as_f32s(&tile.x), self.product.first_mut()) {
            (Filter::Difference(copies), Some(x), _) => {
                self.found.contested.clear();
                let x = if copies.scale == 1.0 {
                    x
                } else {
                    self.scaled.clear();
                    self.scaled.extend(x.iter().map(|x| x * copies.scale));
                    &self.scaled
                };
                assign_difference::<V>(x, tile.stride, table.d, tile.rows, copies, &mut self.found);
                for &r in &self.found.contested {
                    tile.row(r as usize, &mut self.row);
                    self.found.labels[r as usize] = table.nearest(&self.row).label;
                }
            }
            (Filter::Product(copies), _, Some(product)) => {
                for first in (0..tile.rows).step_by(product::ROWS) {
                    product.find_reach::<V, T>(tile, first, copies, table.k);
                    for (r, label) in self.found.labels[first..tile.rows].iter_mut().enumerate().take(product::ROWS) {
                        *label = match product.counts[r] {
                            1 => product.reach[r][0],
                            count => {
                                tile.row(first + r, &mut self.row);
                                if count == product::ALL {
                                    table.nearest(&self.row).label
                                } else {
                                    settle(&self.row, table, &product.reach[r][..count as usize])
                                }
                            }
                        };
                    }
                }
            }
            _ => {
                for r in 0..tile.rows {
                    tile.row(r, &mut self.row);
                    self.found.labels[r] = table.nearest(&self.row).label;
                }
            }
        }
        &self.found.labels[..tile.rows]
    }
}

fn uses_difference<T: Float>(d: usize) -> bool {
    T::IS_F32 && d <= MAX_DIFFERENCE_D
}

/// The nearest of some centroids (ascending) by reference distances. Latency limits each chain, so two chains run at a time.
#[inline(always)]
fn settle<T: Float>(x: &[f64], table: &CentroidTable<T>, candidates: &[u32]) -> u32 {
    let (mut label, mut least) = (candidates[0], f64::INFINITY);
    for pair in candidates.chunks(2) {
        let (a, b) = (table.row(pair[0] as usize), table.row(pair[pair.len() - 1] as usize));
        let mut s = [0.0f64; 2];
        for ((x, a), b) in x.iter().zip(a).zip(b) {
            let (t, u) = (x - a.to_f64(), x - b.to_f64());
            s = [t.mul_add(t, s[0]), u.mul_add(u, s[1])];
        }
        for (j, s) in pair.iter().zip(s) {
            if s < least {
                (label, least) = (*j, s);
            }
        }
    }
    label
}
