//! Rows that are on a GPU before the fit: whatever their layout and type, the bits are those of the same rows in host memory.

use std::sync::Arc;

use cudarc::driver::{CudaContext, result};
use polars_kmeans::backend::cuda::traffic;
use polars_kmeans::{
    Chunk, Column, Device, Engine, Features, GpuTable, GpuValues, Half, Init, KMeans, KMeansError, NullPolicy, RowOrder, Scale,
    Strategy, Validity, ValueType,
};

use crate::child::in_child;
use crate::data::{Random, gpu, gpu_info, hash, rows, some_weights, transformed};
use crate::half::{BOTH, Halves};

/// The number of the GPU of these tests. `None` if there is none.
fn ordinal() -> Option<u32> {
    gpu().map(|_| gpu_info().ordinal)
}

/// Memory of the GPU, as another library would have it.
struct Memory {
    address: u64,
    /// The primary context, which every library of a process shares.
    context: Arc<CudaContext>,
}

impl Memory {
    /// A copy of the bytes, and room after them.
    fn of<V: Copy>(ordinal: u32, values: &[V], room: usize) -> Self {
        let context = CudaContext::new(ordinal as usize).unwrap();
        context.bind_to_thread().unwrap();
        // SAFETY: the memory is as large as the values. They are plain numbers.
        let address = unsafe {
            let address = result::malloc_sync((size_of_val(values) + room).max(1)).unwrap();
            // What lies behind the values must not matter: NaNs in every type.
            result::memset_d8_sync(address, 0xff, (size_of_val(values) + room).max(1)).unwrap();
            result::memcpy_htod_sync(address, values).unwrap();
            address
        };
        // A small copy from pageable memory may still be on its way, and our queues do not wait for it.
        context.synchronize().unwrap();
        Self { address, context }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.context.bind_to_thread().unwrap();
        // SAFETY: it was allocated once, and no table reads it any more.
        unsafe { result::free_sync(self.address).unwrap() };
    }
}

fn own_type<T: Engine>() -> ValueType {
    if T::IS_F32 { ValueType::Float32 } else { ValueType::Float64 }
}

/// An array on the host with a layout, and where its values are on the GPU. The room decides whether kernels may read it in place.
struct Case<T> {
    name: &'static str,
    values: Vec<T>,
    piece: GpuValues,
    room: usize,
    in_place: bool,
}

/// Row-major rows in every layout that there is.
fn cases<T: Engine>(x: &[T], n: usize, d: usize) -> Vec<Case<T>> {
    let kind = own_type::<T>();
    let at = |i: usize, f: usize| x[i * d + f];
    // Whole loads of 16 bytes, and one value more.
    let (even, odd) = (n.next_multiple_of(4), n.next_multiple_of(4) + 1);
    let by_columns = |pitch: usize| {
        let mut values = vec![T::from_f64(f64::NAN); pitch * d];
        (0..d).for_each(|f| (0..n).for_each(|i| values[f * pitch + i] = at(i, f)));
        values
    };
    let (wide, first) = (d + 3, 2);
    let mut part = vec![T::from_f64(f64::NAN); 2 * n * wide];
    (0..n).for_each(|i| (0..d).for_each(|f| part[2 * i * wide + first + f] = at(i, f)));
    let backwards: Vec<T> = x.iter().rev().copied().collect();
    let strided = |first: i64, row_pitch: i64, column_pitch: i64| GpuValues {
        first,
        row_pitch,
        column_pitch,
        ..GpuValues::rows(0, kind, d)
    };
    let case = |name, values, piece, room, in_place| Case { name, values, piece, room, in_place };
    vec![
        case("row-major", x.to_vec(), GpuValues::rows(0, kind, d), 0, d == 1 && n.is_multiple_of(1024)),
        case("columns", by_columns(even), GpuValues::columns(0, kind, d, even), 8192, true),
        case("columns that nothing follows", by_columns(even), GpuValues::columns(0, kind, d, even), 0, n.is_multiple_of(1024)),
        case("columns that are not aligned", by_columns(odd), GpuValues::columns(0, kind, d, odd), 8192, d == 1),
        case("some rows and columns", part, strided(first as i64, 2 * wide as i64, 1), 0, false),
        case("backwards", backwards, strided((n * d) as i64 - 1, -(d as i64), -1), 0, false),
    ]
}

fn check<T: Engine>(round: u64, ordinal: u32) {
    let random = &mut Random(90_000 + round);
    let [n, d, k] = [[900, 3, 5], [5_000, 1, 7], [2_048, 16, 40], [3_001, 33, 20], [700, 70, 30]][round as usize % 5];
    let x: Vec<T> = rows(["blobs", "duplicates", "offset 1e6"][random.below(3)], n, d, random);
    let weights = some_weights(n, random);
    let weighted = round % 3 == 1;
    let host = Features::from_rows(&x, d).unwrap();
    let host_weights = Column::from_slice(&weights);
    let weights_there = Memory::of(ordinal, &weights, 0);
    // SAFETY: the memory has the values, and outlives the table.
    let weight_table =
        unsafe { GpuTable::<f64>::new(ordinal, n, [GpuValues::rows(weights_there.address, ValueType::Float64, 1)]).unwrap() };
    let gpu_weights = Column::on_gpu(&weight_table).unwrap();
    let estimator = transformed(KMeans::new(k).max_iter(6).seed(round), round, d);
    let estimator = if round % 4 == 2 { estimator.balanced(true).max_iter(2) } else { estimator };
    let expected = estimator.clone().device(Device::Cpu).fit_features(&host, weighted.then_some(&host_weights));
    for case in cases(&x, n, d) {
        let what = format!("{}, round {round}: {n} x {d} into {k}, {}", case.name, T::NAME);
        let memory = Memory::of(ordinal, &case.values, case.room);
        let piece = GpuValues { address: memory.address, ..case.piece };
        // SAFETY: the memory has the values, and outlives the table.
        let table = unsafe { GpuTable::<T>::new(ordinal, n, [piece]).unwrap() };
        assert!(table.is_read_in_place() || !case.in_place, "{what}: a copy");
        let features = Features::on_gpu(&table).unwrap();
        let fitted = estimator.fit_features(&features, weighted.then_some(&gpu_weights));
        match (&fitted, &expected) {
            (Ok(fitted), Ok(expected)) => {
                assert_eq!(hash(fitted), hash(expected), "{what}");
                assert!(fitted.choice.reason.starts_with("the rows are on cuda:"), "{what}: {}", fitted.choice.reason);
            }
            (fitted, expected) => {
                let text = |fit: &polars_kmeans::Result<_>| fit.as_ref().err().map(ToString::to_string);
                assert_eq!(text(fitted), text(expected), "{what}");
                continue;
            }
        }
        let model = &expected.as_ref().unwrap().model;
        let placed = model.on(Device::Auto);
        let labels: Vec<i32> =
            model.predict(&host).unwrap().iter().map(|label| label.map_or(-1, |label| label as i32)).collect();
        assert_eq!(placed.predict_there(&features).unwrap().to_vec().unwrap(), labels, "{what}");
        let near = placed.predict_distances_there(&features).unwrap();
        let all = model.predict_distances(&host).unwrap();
        assert_eq!(near.labels.to_vec().unwrap(), labels, "{what}");
        assert_eq!(near.nearest.to_vec().unwrap(), all.distances().nearest, "{what}");
        assert_eq!(near.seconds.map(|seconds| seconds.to_vec().unwrap()), all.distances().second, "{what}");
        for squared in [false, true] {
            let distances = placed.transform_there(&features, squared).unwrap().to_vec().unwrap();
            assert_eq!(distances, model.transform(&host, squared).unwrap(), "{what}");
        }
        let there = placed.score(&features, weighted.then_some(&gpu_weights)).unwrap();
        assert_eq!(there, model.score(&host, weighted.then_some(&host_weights)).unwrap(), "{what}");
        // Weights may be in the other place.
        let mixed = estimator.fit_features(&features, weighted.then_some(&host_weights)).unwrap();
        assert_eq!(hash(&mixed), hash(expected.as_ref().unwrap()), "{what}");
    }
}

#[test]
fn rows_on_a_gpu_give_the_bits_of_rows_on_the_host() {
    let Some(ordinal) = ordinal() else { return };
    for round in 0..20 {
        check::<f32>(round, ordinal);
        check::<f64>(round, ordinal);
    }
}

/// Columns in several batches: each is read where it is. Some rows are not finite.
#[test]
fn predictions_read_columns_in_place() {
    let Some(ordinal) = ordinal() else { return };
    let random = &mut Random(91_000);
    let (n, d, k) = (70_001usize, 768, 300);
    let pitch = n.next_multiple_of(4);
    let mut values: Vec<f32> = rows("blobs", pitch, d, random);
    let start = (0..k).flat_map(|j| (0..d).map(move |f| (j, f))).map(|(j, f)| f64::from(values[f * pitch + j])).collect();
    (0..50).for_each(|i| values[random.below(d) * pitch + random.below(n)] = [f32::NAN, f32::INFINITY][i % 2]);
    let columns: Vec<&[f32]> = values.chunks_exact(pitch).map(|column| &column[..n]).collect();
    let host = Features::from_columns(columns.iter().copied()).unwrap();
    let known = host.slice(0..k).unwrap();
    let estimator = KMeans::new(k).init(Init::Given(start)).max_iter(1).null_policy(NullPolicy::Skip).device(Device::Cpu);
    let known = estimator.clone().fit_features(&known, None);
    let model = known.unwrap_or_else(|_| estimator.fit_features(&host, None).unwrap()).model;
    let right: Vec<i32> = model.predict(&host).unwrap().iter().map(|label| label.map_or(-1, |label| label as i32)).collect();
    for room in [8192, 0] {
        let memory = Memory::of(ordinal, &values, room);
        let piece = GpuValues::columns(memory.address, ValueType::Float32, d, pitch);
        // SAFETY: the memory has the values, and outlives the table.
        let table = unsafe { GpuTable::<f32>::new(ordinal, n, [piece]).unwrap() };
        assert_eq!(table.is_read_in_place(), room > 0);
        let features = Features::on_gpu(&table).unwrap();
        for kernel in [Strategy::TensorWgmma, Strategy::TensorMma, Strategy::Tiled, Strategy::Default] {
            let labels = model.on(Device::Auto).strategy(kernel).predict_there(&features).unwrap().to_vec().unwrap();
            assert_eq!(labels, right, "{kernel}, room {room}");
            let some = features.slice(1_025..n - 7).unwrap();
            let labels = model.on(Device::Auto).strategy(kernel).predict_there(&some).unwrap().to_vec().unwrap();
            assert_eq!(labels, right[1_025..n - 7], "{kernel}, room {room}, from row 1,025");
        }
    }
}

/// Values that every type holds, as bytes of the type.
fn bytes_of(kind: ValueType, values: &[i16]) -> Vec<u8> {
    macro_rules! bytes {
        ($t:ty) => {
            values.iter().flat_map(|v| (*v as $t).to_le_bytes()).collect()
        };
    }
    match kind {
        ValueType::Bit => {
            let mut bits = vec![0u8; values.len().div_ceil(8)];
            values.iter().enumerate().for_each(|(i, v)| bits[i / 8] |= u8::from(*v != 0) << (i % 8));
            bits
        }
        ValueType::Int8 => bytes!(i8),
        ValueType::Int16 => bytes!(i16),
        ValueType::Int32 => bytes!(i32),
        ValueType::Int64 => bytes!(i64),
        ValueType::UInt8 => bytes!(u8),
        ValueType::UInt16 => bytes!(u16),
        ValueType::UInt32 => bytes!(u32),
        ValueType::UInt64 => bytes!(u64),
        // The upper half of a float32 is a bfloat16. Whole numbers below 2^8 lose nothing.
        ValueType::BFloat16 => values.iter().flat_map(|v| ((f32::from(*v).to_bits() >> 16) as u16).to_le_bytes()).collect(),
        ValueType::Float16 => values.iter().flat_map(|v| half_of(*v).to_le_bytes()).collect(),
        ValueType::Float32 => bytes!(f32),
        ValueType::Float64 => bytes!(f64),
    }
}

/// The bits of a whole number from 0 to 127 as float16.
fn half_of(v: i16) -> u16 {
    if v == 0 {
        return 0;
    }
    let exponent = 15 - (v as u16).leading_zeros() as u16;
    (exponent + 15) << 10 | ((v as u16) << (10 - exponent) & 0x3ff)
}

#[test]
fn columns_of_every_type_with_nulls_are_taken_in() {
    const ALL: [ValueType; 13] = [
        ValueType::Bit,
        ValueType::Int8,
        ValueType::Int16,
        ValueType::Int32,
        ValueType::Int64,
        ValueType::UInt8,
        ValueType::UInt16,
        ValueType::UInt32,
        ValueType::UInt64,
        ValueType::Float16,
        ValueType::BFloat16,
        ValueType::Float32,
        ValueType::Float64,
    ];
    let Some(ordinal) = ordinal() else { return };
    let (n, first) = (1_500usize, 5usize);
    let random = &mut Random(3);
    let columns: Vec<Vec<i16>> = ALL
        .iter()
        .map(|kind| (0..n + first).map(|_| random.below(if *kind == ValueType::Bit { 2 } else { 100 }) as i16).collect())
        .collect();
    let bits: Vec<u8> = (0..(n + first).div_ceil(8)).map(|i| if i % 9 == 4 { 0b1011_1111 } else { 0xff }).collect();
    let bitmap = Memory::of(ordinal, &bits, 0);
    let memories: Vec<Memory> = ALL.iter().zip(&columns).map(|(kind, x)| Memory::of(ordinal, &bytes_of(*kind, x), 0)).collect();
    let piece = |i: usize| GpuValues {
        first: first as i64,
        row_pitch: 1,
        column_pitch: 0,
        validity: (i % 4 == 2).then_some((bitmap.address, first as u64)),
        ..GpuValues::rows(memories[i].address, ALL[i], 1)
    };
    // SAFETY: the memory has the values, and outlives the table.
    let table = unsafe { GpuTable::<f64>::new(ordinal, n, (0..ALL.len()).map(piece)).unwrap() };
    let on_gpu = Features::on_gpu(&table).unwrap();
    let values: Vec<Vec<f64>> = columns.iter().map(|x| x.iter().map(|v| f64::from(*v)).collect()).collect();
    let validity = |i: usize| (i % 4 == 2).then(|| Validity::new(&bits, first));
    let column = |i: usize| Column::new([Chunk::new(&values[i][first..], validity(i)).unwrap()]);
    let on_host = Features::new((0..ALL.len()).map(column).collect()).unwrap();
    let estimator = KMeans::new(9).seed(2);
    let error = |features| estimator.fit_features(features, None).unwrap_err().to_string();
    assert_eq!(error(&on_gpu), error(&on_host));
    let skipping = estimator.null_policy(NullPolicy::Skip);
    let (there, here) = [&on_gpu, &on_host].map(|features| skipping.fit_features(features, None).unwrap()).into();
    assert_eq!(hash(&there), hash(&here));
    let labels: Vec<Option<u32>> = here.model.predict(&on_host).unwrap().iter().collect();
    assert!(labels.contains(&None));
    let there = there.model.on(Device::Auto).predict_there(&on_gpu).unwrap().to_vec().unwrap();
    assert!(there.iter().zip(&labels).all(|(there, here)| u32::try_from(*there).ok() == *here));
    // SAFETY: as above. Whole numbers of 32 bits do not fit into float32.
    let refused = unsafe { GpuTable::<f32>::new(ordinal, n, [piece(3)]) };
    assert!(matches!(refused, Err(KMeansError::UnsupportedDtype { .. })));
}

/// They are read where they are, copied as columns of 16 bits, or widened because rows are scaled. One value is a NaN.
#[test]
fn values_of_16_bits_have_the_bits_of_float32() {
    let Some(ordinal) = ordinal() else { return };
    for (round, half) in BOTH.into_iter().cycle().take(6).enumerate() {
        let [n, d, k] = [[3_000, 4, 9], [2_000, 20, 12], [1_200, 70, 30]][round / 2];
        let mut data = Halves::new(half, "blobs", n, d, &mut Random(round as u64));
        if round % 3 == 2 {
            data.bits[7 * d + 1] = 0x7fff;
            data.wide[7 * d + 1] = f32::NAN;
        }
        let kind = if half == Half::Float16 { ValueType::Float16 } else { ValueType::BFloat16 };
        let by_columns: Vec<u16> = crate::data::columns(&data.bits, d).concat();
        let odd: Vec<u16> = [&[0; 3], &data.bits[..]].concat();
        let pieces = [
            (&by_columns, GpuValues::columns(0, kind, d, n), n.is_multiple_of(8)),
            (&data.bits, GpuValues::rows(0, kind, d), false),
            (&odd, GpuValues { first: 3, ..GpuValues::rows(0, kind, d) }, false),
        ];
        let host = Features::from_rows(&data.wide, d).unwrap();
        let plain = KMeans::new(k).seed(round as u64).max_iter(8).null_policy(NullPolicy::Skip);
        let sorted = plain.clone().row_order(RowOrder::Values);
        for estimator in [plain.clone(), plain.clone().init(Init::KMeansParallel), plain.scale(Scale::Standard), sorted] {
            let expected = estimator.fit_features(&host, None).unwrap();
            let labels = expected.model.predict(&host).unwrap();
            for (values, piece, in_place) in &pieces {
                let memory = Memory::of(ordinal, values, 8192);
                // SAFETY: the memory has the values, and outlives the table.
                let table =
                    unsafe { GpuTable::<f32>::new(ordinal, n, [GpuValues { address: memory.address, ..*piece }]).unwrap() };
                assert_eq!(table.is_read_in_place(), *in_place);
                let there = Features::on_gpu(&table).unwrap();
                let fitted = estimator.fit_features(&there, None).unwrap();
                assert_eq!(hash(&fitted), hash(&expected), "{half:?}, {n} x {d}, {piece:?}");
                let found = fitted.model.on(Device::Auto).predict_there(&there).unwrap().to_vec().unwrap();
                assert!(found.iter().zip(labels.iter()).all(|(there, here)| u32::try_from(*there).ok() == here));
            }
        }
    }
}

#[test]
fn bad_rows_on_a_gpu_have_the_errors_of_the_host() {
    let Some(ordinal) = ordinal() else { return };
    let (n, d) = (3_000, 4);
    let mut x: Vec<f32> = rows("blobs", n, d, &mut Random(8));
    let estimator = KMeans::new(4).seed(1);
    for (place, bad) in [(4 * 700 + 1, f32::NAN), (4 * 2_999 + 3, f32::INFINITY), (2, f32::NAN)] {
        x[place] = bad;
        let memory = Memory::of(ordinal, &x, 0);
        // SAFETY: the memory has the values, and outlives the table.
        let table =
            unsafe { GpuTable::<f32>::new(ordinal, n, [GpuValues::rows(memory.address, ValueType::Float32, d)]).unwrap() };
        let (there, here) = (Features::on_gpu(&table).unwrap(), Features::from_rows(&x, d).unwrap());
        let error = |features| estimator.fit_features(features, None).unwrap_err().to_string();
        assert_eq!(error(&there), error(&here));
        let skipping = estimator.clone().null_policy(NullPolicy::Skip);
        let [there, here] = [&there, &here].map(|features| hash(&skipping.fit_features(features, None).unwrap()));
        assert_eq!(there, here);
    }
    let mut weights = vec![1.0; n];
    weights[77] = -2.0;
    x.iter_mut().for_each(|x| *x = if x.is_finite() { *x } else { 0.0 });
    let (memory, weight_memory) = (Memory::of(ordinal, &x, 0), Memory::of(ordinal, &weights, 0));
    // SAFETY: the memory has the values, and outlives the tables.
    let (table, weight_table) = unsafe {
        (
            GpuTable::<f32>::new(ordinal, n, [GpuValues::rows(memory.address, ValueType::Float32, d)]).unwrap(),
            GpuTable::<f64>::new(ordinal, n, [GpuValues::rows(weight_memory.address, ValueType::Float64, 1)]).unwrap(),
        )
    };
    let there = Features::on_gpu(&table).unwrap();
    let error = estimator.fit_features(&there, Some(&Column::on_gpu(&weight_table).unwrap())).unwrap_err();
    assert_eq!(error, KMeansError::NegativeWeight { row: 77, got: -2.0 });
    for device in [Device::Cpu, Device::Cuda(Some(ordinal + 1))] {
        let error = estimator.clone().device(device).fit_features(&there, None).unwrap_err().to_string();
        assert!(error.contains("because the rows are on that GPU"), "{error}");
    }
}

#[test]
fn only_centroids_and_scalars_cross_the_bus() {
    let Some(ordinal) = ordinal() else { return };
    // In a process of its own: other tests add to the count.
    in_child("gpu_tables::only_centroids_and_scalars_cross_the_bus", || little_crosses_the_bus(ordinal));
}

fn little_crosses_the_bus(ordinal: u32) {
    let (n, d, k) = (400_000, 16, 10);
    let x: Vec<f32> = rows("blobs", n, d, &mut Random(5));
    let by_columns: Vec<f32> = crate::data::columns(&x, d).concat();
    for (values, piece) in
        [(&x, GpuValues::rows(0, ValueType::Float32, d)), (&by_columns, GpuValues::columns(0, ValueType::Float32, d, n))]
    {
        let memory = Memory::of(ordinal, values, 8192);
        // SAFETY: the memory has the values, and outlives the table.
        let table = unsafe { GpuTable::<f32>::new(ordinal, n, [GpuValues { address: memory.address, ..piece }]).unwrap() };
        let features = Features::on_gpu(&table).unwrap();
        let estimator = KMeans::new(k).seed(1).max_iter(30);
        let [up, down] = traffic::bytes();
        let fitted = estimator.fit_with(&features, None, polars_kmeans::Wanted::Nothing).unwrap();
        let labels = fitted.model.on(Device::Auto).predict_there(&features).unwrap();
        let [up_now, down_now] = traffic::bytes();
        assert_eq!(labels.len(), n);
        println!("in place: {}, up {} and down {} bytes", table.is_read_in_place(), up_now - up, down_now - down);
        // Extents of 4,096 rows at a time come to the host. Labels of one byte would be 400,000 bytes.
        assert!(up_now - up < 20_000 && down_now - down < 100_000, "up {} and down {}", up_now - up, down_now - down);
    }
}
