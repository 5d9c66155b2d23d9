//! Views of features read the values that they are made of: chunks, blocks, slices of them, and values at regular distances.

use polars_kmeans::{Chunk, Column, Features, Validity};

#[test]
fn tiles_cross_chunks_and_blocks() {
    let x: Vec<f32> = (0..10).map(|i| i as f32).collect();
    let y: Vec<f32> = (0..10).map(|i| 100.0 + i as f32).collect();
    let chunked = |v: &'static [usize], s: &'static [f32]| {
        Column::new(v.windows(2).map(|w| Chunk::new(&s[w[0]..w[1]], None).unwrap()).collect::<Vec<_>>())
    };
    let (x, y): (&'static [f32], &'static [f32]) = (x.leak(), y.leak());
    let columns = Features::new(vec![chunked(&[0, 3, 3, 7, 10], x), chunked(&[0, 1, 10], y)]).unwrap();
    let rows: Vec<f32> = (0..10).flat_map(|i| [i as f32, 100.0 + i as f32]).collect();
    let blocks =
        Features::from_blocks([(&rows[..6], None, None), (&rows[6..6], None, None), (&rows[6..], None, None)], 2).unwrap();
    for view in [columns.clone(), blocks.clone(), columns.slice(0..10).unwrap().slice(0..10).unwrap()] {
        let mut tile = [-1.0; 10];
        view.copy_tile(2..7, 5, &mut tile);
        assert_eq!(tile, [2.0, 3.0, 4.0, 5.0, 6.0, 102.0, 103.0, 104.0, 105.0, 106.0]);
        view.gather_tile(&[0, 2, 3, 9], 5, &mut tile);
        assert_eq!(tile, [0.0, 2.0, 3.0, 9.0, 6.0, 100.0, 102.0, 103.0, 109.0, 106.0]);
        view.gather_tile(&[7, 6, 0], 5, &mut tile);
        assert_eq!(tile, [7.0, 6.0, 0.0, 9.0, 6.0, 107.0, 106.0, 100.0, 109.0, 106.0]);
    }
    for view in [columns, blocks].map(|view| view.slice(1..9).unwrap().slice(1..6).unwrap()) {
        let mut tile = [-1.0; 10];
        view.copy_tile(0..5, 5, &mut tile);
        assert_eq!(tile, [2.0, 3.0, 4.0, 5.0, 6.0, 102.0, 103.0, 104.0, 105.0, 106.0]);
    }
}

#[test]
fn nulls_are_found_through_slices() {
    let values = [0.0f64; 8];
    let bits = [0b1101_1011u8, 0b1];
    let column = Column::new([Chunk::new(&values, Some(Validity::new(&bits, 1))).unwrap()]);
    let view = Features::new(vec![column.clone(), column]).unwrap();
    let mut nulls = Vec::new();
    view.slice(1..8).unwrap().for_each_null(0..7, |f, i| nulls.push((f, i)));
    assert_eq!(nulls, [(0, 0), (0, 3), (1, 0), (1, 3)]);
    assert!(Chunk::new(&values, Some(Validity::new(&bits, 9))).is_err());
}

#[test]
fn every_part_of_an_array_reads_as_its_copy() {
    let values: Vec<f64> = (0..600).map(f64::from).collect();
    for n in [0, 1, 2, 7, 40] {
        for d in [1, 2, 5, 6] {
            for (first, steps) in [
                (0, [d as isize, 1]),
                (3, [13, 1]),
                (3, [1, 45]),
                (599, [-13, -1]),
                (300, [-7, 45]),
                (20, [12, 2]),
                (5, [0, 0]),
            ] {
                let view = Features::from_strided(&values, first, [n, d], steps).unwrap();
                let value = |row: usize, f: usize| (first as isize + row as isize * steps[0] + f as isize * steps[1]) as f64;
                let mut tile = vec![-1.0; d * 64];
                view.copy_tile(0..n, 64, &mut tile);
                let chosen: Vec<usize> = (0..n).rev().step_by(3).collect();
                let mut some = vec![-1.0; d * 64];
                view.gather_tile(&chosen, 64, &mut some);
                let mut half = vec![-1.0; d * 64];
                view.slice(n / 2..n).unwrap().copy_tile(0..n - n / 2, 64, &mut half);
                for f in 0..d {
                    assert!((0..n).all(|row| tile[f * 64 + row] == value(row, f)), "{n} x {d} at {first} by {steps:?}");
                    assert!(chosen.iter().enumerate().all(|(i, &row)| some[f * 64 + i] == value(row, f)));
                    assert!((n / 2..n).all(|row| half[f * 64 + row - n / 2] == value(row, f)));
                }
                assert_eq!((view.n_rows(), view.n_features(), view.may_have_nulls()), (n, d, false));
            }
        }
    }
}

#[test]
fn values_outside_of_the_slice_are_refused() {
    let values = [0.0f32; 10];
    for (first, steps) in [(0, [4, 1]), (0, [-1, 1]), (3, [2, -4]), (8, [1, 1]), (0, [isize::MAX, 1])] {
        assert!(Features::from_strided(&values, first, [4, 2], steps).is_err(), "{first} {steps:?}");
    }
    assert!(Features::from_strided(&values, 3, [4, 2], [2, -3]).is_ok());
    assert!(Features::from_strided(&values, 0, [4, 0], [1, 1]).is_err());
}
