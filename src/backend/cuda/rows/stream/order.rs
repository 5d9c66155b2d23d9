//! The order in which a pass visits the chunks, and the buffers for the chunks that are not on the device.

use std::collections::VecDeque;

use crate::base::error::Result;
use crate::base::memory;

/// The name of the visits in errors.
pub const VISITS: &str = "the list of chunks";

/// The visit of one chunk in a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkVisit {
    pub chunk: usize,
    pub buffer: usize,
    /// Set if the chunk must be sent to the device.
    pub load: Option<Load>,
}

/// What the load must wait for: the visit of this pass to the chunk that the buffer held before. None if it needs no wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    pub after: Option<usize>,
}

/// The visits of one pass over `chunks` chunks, in ascending (`upwards`) or descending order. `held`: the chunks in the
/// buffers.
///
/// Passes alternate between both directions. So each pass begins with the chunks that the pass before ended with, and they are
/// still in the buffers. If there are `b` buffers, these `b` chunks need not be sent again. A pass that always began at the
/// first chunk would find no useful chunk in the buffers.
pub fn visits(held: &[Option<usize>], chunks: usize, upwards: bool) -> Result<Vec<ChunkVisit>> {
    let holder = |chunk: usize| held.iter().position(|held| *held == Some(chunk));
    // The buffers whose chunk this pass no longer needs. The one that has waited longest comes first.
    let mut free: VecDeque<(usize, Option<usize>)> = memory::with_room(held.len() + 1, VISITS)?.into();
    free.extend(
        (0..held.len()).filter(|&buffer| held[buffer].is_none_or(|chunk| chunk >= chunks)).map(|buffer| (buffer, None)),
    );
    let visit = |turn: usize| {
        let chunk = if upwards { turn } else { chunks - 1 - turn };
        let visit = match holder(chunk) {
            Some(buffer) => ChunkVisit { chunk, buffer, load: None },
            None => {
                let Some((buffer, after)) = free.pop_front() else { unreachable!("what is held comes first") };
                ChunkVisit { chunk, buffer, load: Some(Load { after }) }
            }
        };
        free.push_back((visit.buffer, Some(turn)));
        visit
    };
    memory::collected((0..chunks).map(visit), VISITS)
}

/// What the buffers hold after a pass.
pub fn held_after(before: &[Option<usize>], visits: &[ChunkVisit]) -> Result<Vec<Option<usize>>> {
    let mut held = memory::copied(before, VISITS)?;
    visits.iter().for_each(|visit| held[visit.buffer] = Some(visit.chunk));
    Ok(held)
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    unit_test!(passes_go_to_and_fro_and_only_send_what_is_not_there);
    fn passes_go_to_and_fro_and_only_send_what_is_not_there() {
        for chunks in 1..12 {
            for buffers in 1..14 {
                let mut held = vec![None; buffers];
                for pass in 0..5 {
                    let visits = visits(&held, chunks, pass % 2 == 0).unwrap();
                    let mut seen: Vec<usize> = visits.iter().map(|visit| visit.chunk).collect();
                    // What each buffer holds during the pass, and the turn in which its chunk was visited.
                    let mut there: Vec<_> = held.iter().map(|chunk| (*chunk, None)).collect();
                    for (turn, visit) in visits.iter().enumerate() {
                        let (chunk, visited) = there[visit.buffer];
                        match visit.load {
                            Some(load) => {
                                assert_eq!(load.after, visited);
                                assert!(visited.is_some() || chunk.is_none(), "a chunk is overwritten before its turn");
                            }
                            None => assert!(chunk == Some(visit.chunk) && visited.is_none()),
                        }
                        there[visit.buffer] = (Some(visit.chunk), Some(turn));
                    }
                    seen.sort_unstable();
                    assert!(seen.into_iter().eq(0..chunks));
                    let sent = visits.iter().filter(|visit| visit.load.is_some()).count();
                    let expected = if pass == 0 { chunks } else { chunks.saturating_sub(buffers) };
                    assert_eq!(sent, expected, "{chunks} chunks, {buffers} buffers, pass {pass}");
                    held = held_after(&held, &visits).unwrap();
                }
            }
        }
    }

    unit_test!(a_buffer_waits_for_the_oldest_chunk);
    fn a_buffer_waits_for_the_oldest_chunk() {
        let load = |chunk, buffer, after| ChunkVisit { chunk, buffer, load: Some(Load { after }) };
        let there = |chunk, buffer| ChunkVisit { chunk, buffer, load: None };
        let first = visits(&[None; 2], 4, true).unwrap();
        assert_eq!(first, [load(0, 0, None), load(1, 1, None), load(2, 0, Some(0)), load(3, 1, Some(1))]);
        let held = held_after(&[None; 2], &first).unwrap();
        assert_eq!(held, [Some(2), Some(3)]);
        let second = visits(&held, 4, false).unwrap();
        assert_eq!(second, [there(3, 1), there(2, 0), load(1, 1, Some(0)), load(0, 0, Some(1))]);
    }
}
