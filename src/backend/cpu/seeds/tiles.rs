//! Gains and takes over rows that come through tiles: one task is a task of the session.

use super::super::product::MAX_TILE_ROWS;
use super::super::tasks::{TaskRows, pieces, split_off};
use super::Rows;
use super::nearer::{self, Candidates, Changes, Found, Gains, Strip, UNIT};
use crate::base::float::Float;
use crate::input::tile::{RowBlock, Tile};
use crate::simd::{Task, Vector};
use crate::statistics::Statistics;

/// Computes the gains of candidates over one task of a session.
pub struct TileGains<'p, 'a, T> {
    pub part: &'p RowBlock<'a, T>,
    pub statistics: &'p Statistics,
    pub tile: &'p mut Tile<T>,
    pub task: &'p TaskRows,
    /// The distances of the rows of the task.
    pub near: &'p [f64],
    pub candidates: &'p Candidates<'p, T>,
    pub out: Gains<'p>,
}

impl<T: Float> Task for TileGains<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { part, statistics, tile, task, mut near, candidates, mut out } = self;
        let (mut padded, mut found) = ([0.0; MAX_TILE_ROWS], Found::new());
        for rows in pieces(task.physical.clone(), tile.stride) {
            tile.load(part, statistics.weights, rows);
            let (here, rest) = near.split_at(tile.rows);
            near = rest;
            let padded = pad(&mut padded, here);
            let strip = Strip { x: &tile.x, step: UNIT, stride: tile.stride };
            nearer::add_gains::<V, T>(strip, padded, &tile.weights, candidates, candidates.all(), &mut found, &mut out);
        }
    }
}

/// Lowers the distances of the rows of one task of a session.
pub struct TileTake<'p, 'a, T> {
    pub part: &'p RowBlock<'a, T>,
    pub statistics: &'p Statistics,
    pub tile: &'p mut Tile<T>,
    pub task: &'p TaskRows,
    /// The distances of the rows of the task.
    pub near: &'p mut [f64],
    pub candidates: &'p Candidates<'p, T>,
    pub changes: Changes<'p>,
}

impl<T: Float> Task for TileTake<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { part, statistics, tile, task, mut near, candidates, mut changes } = self;
        let (mut padded, mut found, mut row) = ([0.0; MAX_TILE_ROWS], Found::new(), task.first);
        for rows in pieces(task.physical.clone(), tile.stride) {
            tile.load(part, statistics.weights, rows);
            let near = split_off(&mut near, tile.rows);
            let padded = pad(&mut padded, near);
            let strip = Strip { x: &tile.x, step: UNIT, stride: tile.stride };
            let (rows, all) = (Rows::From(row), candidates.all());
            nearer::lower::<V, T>(strip, padded, &tile.weights, candidates, all, rows, &mut found, &mut changes);
            near.copy_from_slice(&padded[..near.len()]);
            row += tile.rows;
        }
    }
}

/// Copies distances. Fills up their last unit with zeros, so that nothing is nearer than the rows that are not there.
#[inline(always)]
fn pad<'p>(padded: &'p mut [f64; MAX_TILE_ROWS], near: &[f64]) -> &'p mut [f64] {
    let padded = &mut padded[..near.len().next_multiple_of(UNIT)];
    padded[near.len()..].fill(0.0);
    padded[..near.len()].copy_from_slice(near);
    padded
}
