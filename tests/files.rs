//! Models as files: what is in a file, which damage is noticed, and what saving does to existing files.

#[path = "files/groups.rs"]
mod groups;
#[path = "files/trees.rs"]
mod trees;

use std::io::Write;
use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::array::{ArrayRef, FixedSizeListArray, Float32Array, Float64Array, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use polars_kmeans::{AnyModel, Decay, ErrorKind, History, Init, KMeans, KMeansError, KMeansModel, Metric, Scale, Update};
use xxhash_rust::xxh3::xxh3_128;

fn batch(columns: impl IntoIterator<Item = (&'static str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter(columns).unwrap()
}

fn float64(values: &[f64]) -> ArrayRef {
    Arc::new(Float64Array::from(values.to_vec()))
}

/// A model of two columns.
fn small() -> KMeansModel {
    let rows = batch([("x", float64(&[0.0, 0.1, 5.0, 5.3, 9.0])), ("y", float64(&[1.0, 1.5, -0.1, 0.0, 7.0]))]);
    KMeans::new(2).seed(3).history(History::Full).tol(1e-3).fit_batches(&[rows], ["x", "y"], None).unwrap().model
}

/// A model of scaled columns.
fn scaled() -> KMeansModel {
    let rows = batch([("x", float64(&[0.0, 0.1, 5.0, 5.3, 9.0])), ("y", float64(&[1000.0, 1500.0, -100.0, 20.0, 7000.0]))]);
    KMeans::new(2).scale(Scale::Standard).fit_batches(&[rows], ["x", "y"], None).unwrap().model
}

/// A model of one column of lists.
fn of_lists(name: &str, d: usize) -> KMeansModel {
    let values = Float32Array::from_iter_values((0..4 * d as u32).map(|i| (i * 7919 % 101) as f32));
    let item = Arc::new(Field::new("item", DataType::Float32, true));
    let lists = FixedSizeListArray::try_new(item, d as i32, Arc::new(values), None).unwrap();
    let rows = RecordBatch::try_from_iter([(name, Arc::new(lists) as ArrayRef)]).unwrap();
    KMeans::new(2).fit_batches(&[rows], [name], None).unwrap().model
}

fn refusal(bytes: &[u8]) -> String {
    match KMeansModel::from_bytes(bytes) {
        Err(error @ KMeansError::InvalidModel { .. }) => error.to_string(),
        Err(other) => panic!("{other:?}"),
        Ok(model) => panic!("{model:?}"),
    }
}

/// Where the parts of a file begin: the format, the length of the body, its checksum, the body.
const FORMAT_AT: usize = 4 + 13;
const LENGTH_AT: usize = FORMAT_AT + 1;
const CHECKSUM_AT: usize = LENGTH_AT + 8;
const BODY_AT: usize = CHECKSUM_AT + 16;

/// Where the body of a file ends.
fn body_end(file: &[u8]) -> usize {
    BODY_AT + u64::from_le_bytes(file[LENGTH_AT..CHECKSUM_AT].try_into().unwrap()) as usize
}

/// The file with another body, and with the length and the checksum of that body.
fn with_body(file: &[u8], body: &[u8]) -> Vec<u8> {
    let (length, checksum) = ((body.len() as u64).to_le_bytes(), xxh3_128(body).to_le_bytes());
    [&file[..LENGTH_AT], &length, &checksum, body, &file[body_end(file)..]].concat()
}

/// The body of a file without quanta and what else came later.
fn without_tail(file: &[u8]) -> &[u8] {
    let body = &file[BODY_AT..body_end(file)];
    let whole = |end: &usize| KMeansModel::from_bytes(&with_body(file, &body[..*end])).is_ok();
    &body[..(1..body.len()).find(whole).expect("a model without a tail")]
}

/// The file with every `old` in its body replaced by `new`.
fn with(file: &[u8], old: impl AsRef<[u8]>, new: impl AsRef<[u8]>) -> Vec<u8> {
    let (old, mut rest, mut body) = (old.as_ref(), &file[BODY_AT..body_end(file)], Vec::new());
    while let Some(at) = rest.windows(old.len()).position(|window| window == old) {
        body.extend_from_slice(&rest[..at]);
        body.extend_from_slice(new.as_ref());
        rest = &rest[at + old.len()..];
    }
    assert!(!body.is_empty(), "there is no {old:?}");
    with_body(file, &[&body, rest].concat())
}

/// The table and the metadata that other programs read from a file.
fn table(file: &[u8]) -> (RecordBatch, serde_json::Value) {
    let mut on_disk = tempfile::tempfile().unwrap();
    on_disk.write_all(file).unwrap();
    let builder = ParquetRecordBatchReaderBuilder::try_new(on_disk).unwrap();
    let pairs = builder.metadata().file_metadata().key_value_metadata().unwrap().clone();
    let facts = pairs.into_iter().find(|pair| pair.key == "polars-kmeans").and_then(|pair| pair.value).unwrap();
    let schema = builder.schema().clone();
    let batches: Vec<RecordBatch> = builder.build().unwrap().map(Result::unwrap).collect();
    (concat_batches(&schema, &batches).unwrap(), serde_json::from_str(&facts).unwrap())
}

const GOLDEN: [&str; 3] =
    ["d5c56b7148d42c496ea63991abe969e7", "de93c7bc19121aaea730d46d1a8eb22d", "c4cc127b76ac7982d09db3e4d3fe6d72"];
/// The same models without the tail of their bytes, as they were written before they had quanta.
const WITHOUT_TAIL: [&str; 3] =
    ["552c463684a02c840a8a584d3778ed20", "9095cd4ebd4bbd8cea915f7f2f3d046e", "d6d76ee5e21d32023260e5eeab9492cb"];

/// If this fails because models hold something else than before, `FORMAT` in `src/model/wire.rs` needs another number.
#[test]
fn the_bytes_of_a_model_are_golden() {
    let hash = |model: KMeansModel| {
        let file = model.to_bytes().unwrap();
        assert_eq!(&file[..BODY_AT - 24], b"PAR1polars-kmeans\x01");
        format!("{:032x}", u128::from_le_bytes(file[CHECKSUM_AT..BODY_AT].try_into().unwrap()))
    };
    assert_eq!([hash(small()), hash(of_lists("e", 3)), hash(scaled())], GOLDEN);
}

#[test]
fn files_from_before_the_quanta_are_read() {
    for (model, golden) in [small(), of_lists("e", 3), scaled()].into_iter().zip(WITHOUT_TAIL) {
        let file = model.to_bytes().unwrap();
        let old = without_tail(&file);
        assert_eq!(format!("{:032x}", xxh3_128(old)), golden);
        let loaded = KMeansModel::from_bytes(&with_body(&file, old)).unwrap();
        assert_eq!(loaded.centroid_values().unwrap(), model.centroid_values().unwrap());
        assert!(model.fingerprint().is_ok() && loaded.fingerprint().is_err(), "it has no quanta");
    }
}

#[test]
fn other_programs_read_the_table() {
    for model in [small(), of_lists("e", 3)] {
        let (table, facts) = table(&model.to_bytes().unwrap());
        assert_eq!(table.columns(), model.centroids_batch().unwrap().columns());
        let names: Vec<&str> = table.schema_ref().fields().iter().map(|field| field.name().as_str()).collect();
        let features: Vec<&str> = model.names().iter().map(String::as_str).collect();
        assert_eq!(names, [&["cluster", "size", "inertia"], &features[..]].concat());
        assert_eq!(facts["creator"], concat!("polars-kmeans ", env!("CARGO_PKG_VERSION")));
        assert_eq!((&facts["n_iter"], &facts["parameters"]["k"]), (&model.n_iter().into(), &2.into()));
        // What a fit does not use is left out.
        assert!(facts["scaling"].is_null() && facts["parameters"]["rounds"].is_null());
    }
    assert_eq!(table(&scaled().to_bytes().unwrap()).1["scaling"]["scale"], "standard");
}

#[test]
fn every_flipped_bit_of_the_model_is_noticed() {
    for model in [small(), of_lists("e", 3), scaled()] {
        let file = model.to_bytes().unwrap();
        for bit in 0..file.len() * 8 {
            let mut flipped = file.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            // Load does not look at the table, which is between the model and the mark at the end.
            if (body_end(&file)..file.len() - 4).contains(&(bit / 8)) {
                assert_eq!(KMeansModel::from_bytes(&flipped).unwrap().to_bytes().unwrap(), file);
            } else {
                refusal(&flipped);
            }
        }
    }
}

#[test]
fn what_was_cut_or_added_to_is_refused() {
    for model in [small(), of_lists("e", 3)] {
        let file = model.to_bytes().unwrap();
        for cut in 0..file.len() {
            let message = refusal(&file[..cut]);
            let expected = match cut {
                0..4 => "a file that KMeansModel.save wrote, got something that is no Parquet file",
                _ if cut < body_end(&file) + 4 => "a whole model, got one that breaks off",
                _ => "a whole file, got one that was cut or added to",
            };
            assert!(message.contains(expected), "{cut}: {message}");
        }
        let more = [&file[..], b"\n"].concat();
        assert!(refusal(&more).contains("a whole file, got one that was cut or added to"));
        let body = &file[BODY_AT..body_end(&file)];
        for cut in (0..body.len()).filter(|cut| *cut != without_tail(&file).len()) {
            assert!(refusal(&with_body(&file, &body[..cut])).contains("a whole model"), "{cut}");
        }
        assert!(refusal(&with_body(&file, &[body, b"\n"].concat())).contains("nothing after the model, got 1 bytes"));
    }
}

#[test]
fn a_stopped_fit_is_one_in_files_too() {
    let rows = batch([("x", float64(&[0.0, 0.1, 5.0, 5.3, 9.0]))]);
    let estimator = KMeans::new(2).on_progress(|progress| match progress.iteration {
        0 => ControlFlow::Continue(()),
        _ => ControlFlow::Break(()),
    });
    let model = estimator.fit_batches(&[rows], ["x"], None).unwrap().model;
    let file = model.to_bytes().unwrap();
    let loaded = KMeansModel::from_bytes(&file).unwrap();
    assert!(loaded.stopped() && loaded.to_bytes().unwrap() == file);
    assert_eq!(*KMeansModel::from_wire(&model.to_wire().unwrap()).unwrap(), model);
    let old = without_tail(&file);
    let read = |tail: &[u8]| KMeansModel::from_bytes(&with_body(&file, &[old, tail].concat())).unwrap().stopped();
    assert_eq!([read(&[]), read(&[1])], [false, true], "as it was written before");
    for more in [0, 1, 2] {
        assert!(refusal(&with_body(&file, &[old, &[1, more]].concat())).contains("a whole model"));
    }
}

#[test]
fn a_wrong_head_is_refused() {
    let file = small().to_bytes().unwrap();
    let head = |at: usize, new: &[u8]| refusal(&[&file[..at], new, &file[at + new.len()..]].concat());
    // The other format needs another body.
    assert!(head(FORMAT_AT, &[2]).contains("a whole model"));
    for (format, version) in [(0, "an older"), (3, "a newer"), (255, "a newer")] {
        let message = head(FORMAT_AT, &[format]);
        assert!(message.contains(&format!("a model of format 1 or 2, got format {format} of {version} version")), "{message}");
    }
    for length in [u64::MAX, u64::MAX - 45, 1 << 60, file.len() as u64, (file.len() - BODY_AT - 3) as u64] {
        assert!(head(LENGTH_AT, &length.to_le_bytes()).contains("a whole model, got one that breaks off"), "{length}");
    }
    // These lengths leave the file room for the mark at its end.
    let length = (body_end(&file) - BODY_AT) as u64;
    for length in [0, length - 1, length + 1, (file.len() - BODY_AT - 4) as u64] {
        assert!(head(LENGTH_AT, &length.to_le_bytes()).contains("fits its checksum"), "{length}");
    }
    assert!(head(CHECKSUM_AT, &[0; 16]).contains("a model that fits its checksum, got an altered one"));
    assert!(head(4, b"P").contains("a Parquet file of another program"));
    assert!(head(0, b"p").contains("something that is no Parquet file"));
    assert!(refusal(b"Hello, world!").contains("something that is no Parquet file"));

    let rows = batch([("x", float64(&[1.0]))]);
    let mut other = ArrowWriter::try_new(Vec::new(), rows.schema(), None).unwrap();
    other.write(&rows).unwrap();
    let other = other.into_inner().unwrap();
    assert!(refusal(&other).contains("KMeansModel.from_centroids"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.parquet");
    for (bytes, got) in [(&other[..], "another program"), (&file[..100], "breaks off"), (b"", "no Parquet file")] {
        std::fs::write(&path, bytes).unwrap();
        let error = KMeansModel::load(&path).unwrap_err();
        assert!(matches!(error, KMeansError::InvalidModel { .. }), "{error:?}");
        let message = error.to_string();
        assert!(message.contains(got) && message.contains(path.to_str().unwrap()), "{message}");
    }
}

#[test]
fn what_this_version_does_not_know_is_named() {
    let file = small().to_bytes().unwrap();
    for (old, new, named) in [
        (&b"euclidean"[..], &b"manhattan"[..], "metric"),
        (b"k-means++", b"k-means??", "init"),
        (b"raise", b"throw", "null_policy"),
        (b"full", b"some", "history"),
        (b"given", b"taken", "row_order"),
        (b"\xAC\x02", &[0], "max_iter"),
        (&1e-3f64.to_le_bytes(), &(-1e-3f64).to_le_bytes(), "tol"),
        (&1e-3f64.to_le_bytes(), &f64::NAN.to_le_bytes(), "tol"),
        (b"\x01y", b"\x01x", "\"x\" twice"),
        (b"\x01y", b"\x01\0", "NUL"),
        (b"\x01y", b"\x04size", "may not be named \"size\""),
        (b"\x01y", b"\x01\xFF", "a whole model"),
    ] {
        let message = refusal(&with(&file, old, new));
        assert!(message.contains(named), "{named}: {message}");
    }
    let model = small();
    for number in model.centroid_values().unwrap().iter().chain(model.inertias()).chain([&model.inertia()]) {
        for new in [f64::NAN, f64::INFINITY] {
            refusal(&with(&file, number.to_le_bytes(), new.to_le_bytes()));
        }
    }
    let scaled = scaled();
    let file = scaled.to_bytes().unwrap();
    assert!(refusal(&with(&file, "standard", "nonesuch")).contains("of kind \"nonesuch\""));
    let factor = scaled.scaling().unwrap().factors()[0];
    assert!(refusal(&with(&file, factor.to_le_bytes(), (-factor).to_le_bytes())).contains("positive finite factors"));
}

#[test]
fn scaled_models_keep_factors_and_centroids_bit_for_bit() {
    let rows = batch([("x", float64(&[0.0, 0.1, 5.0, 5.3, 9.0])), ("y", float64(&[1000.0, 1500.0, -100.0, 20.0, 7000.0]))]);
    for (scale, word) in [(Scale::Standard, "standard"), (Scale::Robust, "robust"), (factor(), "given")] {
        for metric in [Metric::Euclidean, Metric::Cosine] {
            let estimator = KMeans::new(2).seed(3).scale(scale.clone()).metric(metric);
            let fit = estimator.fit_batches(std::slice::from_ref(&rows), ["x", "y"], None).unwrap();
            let file = fit.model.to_bytes().unwrap();
            let loaded = KMeansModel::from_bytes(&file).unwrap();
            let (AnyModel::F64(saved), AnyModel::F64(read)) = (fit.model.as_any(), loaded.as_any()) else {
                panic!("the rows are float64")
            };
            assert_eq!((read.centroids(), read.scaling()), (saved.centroids(), saved.scaling()));
            assert_eq!(loaded.to_bytes().unwrap(), file);
            assert_eq!((loaded.scaling().unwrap().scale(), &loaded.settings().metric[..]), (word, metric.word()));
            // It takes raw rows.
            assert_eq!(loaded.predict_batch(&rows).unwrap(), fit.labels[0]);
            assert_eq!(-loaded.score_batches(std::slice::from_ref(&rows), None).unwrap(), fit.model.inertia());
            // The table has the centroids in the units of the columns, and its metadata have the factors. So any reader can label
            // raw rows: the label is that of the least sum of squared differences, each multiplied by its factor.
            let (in_units, facts) = table(&file);
            assert_eq!(in_units.columns(), loaded.centroids_batch().unwrap().columns());
            let value = |batch: &RecordBatch, column: usize, row: usize| {
                batch.column(column).as_any().downcast_ref::<Float64Array>().unwrap().value(row)
            };
            for row in 0..rows.num_rows() {
                let distance = |cluster: usize| {
                    let difference = |f: usize| value(&rows, f, row) - value(&in_units, 3 + f, cluster);
                    (0..2).map(|f| (difference(f) * facts["scaling"]["factors"][f].as_f64().unwrap()).powi(2)).sum::<f64>()
                };
                assert_eq!(fit.labels[0].value(row), u32::from(distance(1) < distance(0)), "{word}, {metric:?}, row {row}");
            }
            for (f, factor) in read.scaling().unwrap().factors().iter().enumerate() {
                let column = in_units.column(3 + f).as_any().downcast_ref::<Float64Array>().unwrap();
                let expected: Vec<f64> = read.centroids().iter().skip(f).step_by(2).map(|c| c / factor).collect();
                assert_eq!(column.values()[..], expected);
            }
        }
    }
}

fn factor() -> Scale {
    Scale::Factors([("y".to_owned(), 1e-3)].into())
}

#[test]
fn bytes_of_a_model_and_names_of_columns() {
    let model = small();
    let bytes = model.to_wire().unwrap();
    assert_eq!(*KMeansModel::from_wire(&bytes).unwrap(), model);
    let mut altered = bytes.clone();
    *altered.last_mut().unwrap() ^= 1;
    let error = KMeansModel::from_wire(&altered).unwrap_err();
    assert!(error.to_string().contains("altered"), "it stands under the hash of one that was decoded: {error}");
    for name in ["a\0b", "size", ""] {
        let rows = batch([(name, float64(&[0.0, 1.0]))]);
        let error = KMeans::new(1).fit_batches(&[rows], [name], None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidColumn, "{error}");
    }
}

#[test]
fn long_names_and_many_features_survive() {
    for (name, d) in [("n".repeat(3_000), 2_000), ("n".repeat(100_000), 3), ("e".into(), 70_000)] {
        let model = of_lists(&name, d);
        let file = model.to_bytes().unwrap();
        assert!(KMeansModel::from_bytes(&file).unwrap().to_bytes().unwrap() == file, "{d} features");
        assert!(model.to_wire().unwrap().len() < 2 * name.len() + 10 * d + 1_000, "no name a feature");
    }
}

#[test]
fn centroids_of_any_magnitude() {
    let tiny = [2f64.powi(-450), -(2f64.powi(-451))];
    let nearly: Vec<f64> = (0..1_000).map(|i| if i % 2 == 0 { 1e-120 } else { -1e-120 * (1.0 + f64::EPSILON) }).collect();
    let given = [0.0, 0.0, 1.0, 1.0];
    for (values, k, init) in [
        (&tiny[..], 1, None),
        (&nearly, 1, None),
        (&nearly, 2, None),
        (&given, 2, Some(vec![2f64.powi(-500), 1.0])),
        (&given, 2, Some(vec![f64::from_bits(1), 2f64.powi(450)])),
        (&[0.0, 0.0], 1, Some(vec![f64::from_bits(1)])),
    ] {
        let rows = batch([("x", float64(values))]);
        let estimator = KMeans::new(k).init(init.map_or_else(Init::default, Init::Given));
        let fit = estimator.fit_batches(std::slice::from_ref(&rows), ["x"], None).unwrap();
        let model = KMeansModel::from_bytes(&fit.model.to_bytes().unwrap()).unwrap();
        assert_eq!(*KMeansModel::from_wire(&fit.model.to_wire().unwrap()).unwrap(), fit.model);
        assert_eq!(model.predict_batch(&rows).unwrap(), fit.labels[0]);
        assert_eq!(model.transform_batch(&rows, false).unwrap(), fit.model.transform_batch(&rows, false).unwrap());
        assert_eq!(-model.score_batches(&[rows], None).unwrap(), fit.model.inertia());
    }
    let too_large = KMeans::new(1).init(Init::Given(vec![2f64.powi(451)]));
    let error = too_large.fit_batches(&[batch([("x", float64(&[1.0]))])], ["x"], None).unwrap_err();
    assert!(matches!(error, KMeansError::MagnitudeOutOfRange { .. }), "{error}");
}

#[cfg(unix)]
mod on_disk {
    use std::fs::{self, File, Permissions};
    use std::io::{Seek, SeekFrom, Write};
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    use super::{BODY_AT, CHECKSUM_AT, KMeansError, KMeansModel, LENGTH_AT, body_end, small};

    fn file_error(result: Result<impl std::fmt::Debug, KMeansError>) -> String {
        match result {
            Err(error @ KMeansError::File { .. }) => error.to_string(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_pipe_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let path = std::ffi::CString::new(pipe.as_os_str().as_bytes()).unwrap();
        // SAFETY: the path ends with a NUL.
        assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
        file_error(KMeansModel::load(&pipe));
        file_error(small().save(&pipe));
    }

    #[test]
    fn links_are_followed_to_where_there_is_nothing_yet() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("models")).unwrap();
        symlink("models/latest.parquet", at("first")).unwrap();
        symlink("first", at("second")).unwrap();
        small().save(at("second")).unwrap();
        assert!(at("first").is_symlink() && at("second").is_symlink());
        assert!(at("models/latest.parquet").metadata().unwrap().is_file());
        assert_eq!(KMeansModel::load(at("second")).unwrap().to_bytes(), small().to_bytes());
        small().save(at("second")).unwrap();
        assert!(at("first").is_symlink() && at("second").is_symlink());
        symlink("missing/model.parquet", at("nowhere")).unwrap();
        file_error(small().save(at("nowhere")));
        symlink("circle", at("circle")).unwrap();
        file_error(small().save(at("circle")));
        assert_eq!(fs::read_dir(at("models")).unwrap().count(), 1, "nothing else is left behind");
    }

    #[test]
    fn a_read_only_file_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.parquet");
        fs::write(&path, b"mine").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o444)).unwrap();
        assert!(file_error(small().save(&path)).contains("permission denied"));
        assert_eq!(fs::read(&path).unwrap(), b"mine");
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        small().save(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o640);
    }

    /// The most bytes of memory that this process has had at any time.
    fn peak() -> u64 {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    }

    /// A file of 2 GiB that takes a few kilobytes on the disk.
    fn sparse(path: &Path, first: &[u8], hole: u64, last: &[u8]) {
        let mut file = File::create(path).unwrap();
        file.write_all(first).unwrap();
        file.seek(SeekFrom::Current(i64::try_from(hole).unwrap())).unwrap();
        file.write_all(last).unwrap();
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_hole_costs_no_memory() {
        const HOLE: u64 = 2 << 30;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.parquet");
        let model = small().to_bytes().unwrap();
        let (start, end) = model.split_at(body_end(&model));
        let before = peak();
        // A hole after the model is never read.
        sparse(&path, start, HOLE, end);
        assert_eq!(KMeansModel::load(&path).unwrap().to_bytes().unwrap(), model);
        // A model that claims more bytes than the file has, and a hole in place of a model.
        let claim = |length: u64| [&model[..LENGTH_AT], &length.to_le_bytes(), &model[CHECKSUM_AT..BODY_AT]].concat();
        for start in [&claim(HOLE + 1)[..], &claim(u64::MAX), b"PAR1", b""] {
            sparse(&path, start, HOLE, b"");
            assert!(matches!(KMeansModel::load(&path), Err(KMeansError::InvalidModel { .. })));
        }
        assert!(peak() - before < 16 << 20, "{} MiB more", (peak() - before) >> 20);
    }
}

/// What only some models have: see `Later` in `src/model/wire.rs`.
#[test]
fn the_second_format_is_read_and_never_taken_for_the_first() {
    let rows = batch([("x", float64(&[0.0, 0.1, 5.0, 5.3, 9.0])), ("w", float64(&[1.0, 2.0, 0.5, 0.0, 1.0]))]);
    let weighted = KMeans::new(2).fit_batches(&[rows], ["x"], Some("w")).unwrap().model;
    let plain =
        KMeans::new(2).keep_sums(true).fit_batches(&[batch([("x", float64(&[0.0, 1.0, 9.0]))])], ["x"], None).unwrap().model;
    let AnyModel::F64(of_plain) = plain.as_any() else { panic!("float64 columns") };
    let keyed = plain.updated(&Update { sums: of_plain.kept_sums(), batch: Some("may"), ..Update::default() }).unwrap();
    let decayed = plain.updated(&Update { decay: Some(Decay::try_from(0.5).unwrap()), ..Update::default() }).unwrap();
    for model in [weighted, keyed, plain.with_wider_extents(&[1e6], None).unwrap(), decayed] {
        let file = model.to_bytes().unwrap();
        assert_eq!(file[FORMAT_AT], 2);
        let loaded = KMeansModel::from_bytes(&file).unwrap();
        assert_eq!((loaded.weights(), loaded.batches()), (model.weights(), model.batches()));
        assert_eq!(loaded.to_bytes().unwrap(), file);
        for bit in 0..body_end(&file) * 8 {
            let mut flipped = file.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            refusal(&flipped);
        }
        let body = &file[BODY_AT..body_end(&file)];
        for cut in 0..body.len() {
            refusal(&with_body(&file, &body[..cut]));
        }
        let mut first = file.clone();
        first[FORMAT_AT] = 1;
        assert!(refusal(&first).contains("nothing after the model"));
    }
}
