//! In which order the chunks of a pass are visited, and into which buffers those come that are not there.

use std::collections::VecDeque;

use crate::error::Result;
use crate::memory;

/// What errors call them.
pub const VISITS: &str = "the list of chunks";

/// One chunk's turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Visit {
    pub chunk: usize,
    pub buffer: usize,
    /// If it has to be sent.
    pub load: Option<Load>,
}

/// What the buffer waits for: the visit of this pass whose chunk it held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    pub after: Option<usize>,
}

/// The visits of one pass over `chunks` chunks, upwards or downwards, with these chunks in the buffers.
///
/// Passes that go up and down in turn find the chunks that the last one ended with, and with them begin: of the `b` buffers' chunks
/// none travels twice in a row, whereas a pass that begins at the first chunk again would find nothing of use.
pub fn visits(held: &[Option<usize>], chunks: usize, upwards: bool) -> Result<Vec<Visit>> {
    let holder = |chunk: usize| held.iter().position(|held| *held == Some(chunk));
    // Buffers whose chunk is done with, the longest first.
    let mut free: VecDeque<(usize, Option<usize>)> = memory::with_room(held.len() + 1, VISITS)?.into();
    free.extend(
        (0..held.len()).filter(|&buffer| held[buffer].is_none_or(|chunk| chunk >= chunks)).map(|buffer| (buffer, None)),
    );
    let visit = |turn: usize| {
        let chunk = if upwards { turn } else { chunks - 1 - turn };
        let visit = match holder(chunk) {
            Some(buffer) => Visit { chunk, buffer, load: None },
            None => {
                let Some((buffer, after)) = free.pop_front() else { unreachable!("what is held comes first") };
                Visit { chunk, buffer, load: Some(Load { after }) }
            }
        };
        free.push_back((visit.buffer, Some(turn)));
        visit
    };
    memory::collected((0..chunks).map(visit), VISITS)
}

/// What the buffers hold after a pass.
pub fn held_after(before: &[Option<usize>], visits: &[Visit]) -> Result<Vec<Option<usize>>> {
    let mut held = memory::copied(before, VISITS)?;
    visits.iter().for_each(|visit| held[visit.buffer] = Some(visit.chunk));
    Ok(held)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_go_to_and_fro_and_only_send_what_is_not_there() {
        for chunks in 1..12 {
            for buffers in 1..14 {
                let mut held = vec![None; buffers];
                for pass in 0..5 {
                    let visits = visits(&held, chunks, pass % 2 == 0).unwrap();
                    let mut seen: Vec<usize> = visits.iter().map(|visit| visit.chunk).collect();
                    // What each buffer holds as the pass goes on, and whether it was visited there.
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

    #[test]
    fn a_buffer_waits_for_the_oldest_chunk() {
        let load = |chunk, buffer, after| Visit { chunk, buffer, load: Some(Load { after }) };
        let there = |chunk, buffer| Visit { chunk, buffer, load: None };
        let first = visits(&[None; 2], 4, true).unwrap();
        assert_eq!(first, [load(0, 0, None), load(1, 1, None), load(2, 0, Some(0)), load(3, 1, Some(1))]);
        let held = held_after(&[None; 2], &first).unwrap();
        assert_eq!(held, [Some(2), Some(3)]);
        let second = visits(&held, 4, false).unwrap();
        assert_eq!(second, [there(3, 1), there(2, 0), load(1, 1, Some(0)), load(0, 0, Some(1))]);
    }
}
