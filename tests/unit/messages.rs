//! Messages between a driver and its workers: their bytes, and what a driver does with replies that are wrong.
//!
//! `tests/golden/messages.txt` has the bytes of an example of every call and of every reply. `WRITE_GOLDEN=1` writes it.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use serde::de::value::Error;
use serde::de::{Deserializer, Error as _, Visitor};
use serde::forward_to_deserialize_any;

use super::*;
use crate::backend::answers::Distances;
use crate::backend::call::Beginning;
use crate::backend::{Assigned, Draw, DrawBy, Far, Move, Sample, WorkCounts};
use crate::base::names::Names;
use crate::base::params::{Init, KMeans, Metric, NullPolicy, Restarts, RowOrder, Scale, TooFew, Wanted};
use crate::base::random::Random;
use crate::distributed::{Executor, OwnedRows, Worker, fit};
use crate::exact::cluster_sums::ClusterSums;
use crate::exact::distances::DistanceScale;
use crate::exact::fixed::{ColumnScale, Limbs};
use crate::input::tile::WeightScale;
use crate::model::{AnyFitted, Fitted};
use crate::statistics::Statistics;
use crate::statistics::refused::Refused;
use crate::statistics::survey::{Extent, Survey};
use crate::statistics::variance::Moments;

/// Finds the names of the variants of an enum.
struct Variants<'n>(&'n mut &'static [&'static str]);

impl<'de> Deserializer<'de> for Variants<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> std::result::Result<V::Value, Error> {
        Err(Error::custom("no enum"))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        _: V,
    ) -> std::result::Result<V::Value, Error> {
        *self.0 = variants;
        Err(Error::custom("the names are enough"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct
        seq tuple tuple_struct map struct identifier ignored_any
    }
}

fn variants<E: DeserializeOwned>() -> &'static [&'static str] {
    let mut names: &[&str] = &[];
    assert!(E::deserialize(Variants(&mut names)).is_err() && !names.is_empty());
    names
}

/// One of each call.
fn calls() -> Vec<Call> {
    let (one, two) = (ColumnScale::new(3, Limbs::One), ColumnScale::new(-4, Limbs::Two));
    let weights = WeightScale::new(2.5);
    let statistics = Statistics {
        n: 300,
        n_positive: 200,
        lows: vec![-1.5, 0.25],
        highs: vec![7.0, 8.0],
        scales: vec![one, two],
        distances: DistanceScale::new(3.7, 1.5),
        shifts: DistanceScale::NONE,
        variance: 0.75,
        weights: Some(weights),
        ties: None,
        metric: Metric::Cosine,
    };
    let beginning = Beginning { keys: vec![1 << 40, 5], prefix: 77, known: 16 };
    let sample = Sample { seed: 9, restart: 8, round: 7, total: 1 << 100, expected: 300, first: 6, by_values: true };
    let start = Start {
        factors: Some(vec![0.5, 3.0]),
        metric: Metric::Cosine,
        device: "cuda:1".into(),
        clusters: 300,
        candidates: (400, 5),
        threads: 6,
    };
    vec![
        Call::Start(start),
        Call::Survey,
        Call::Place,
        Call::SkipBad,
        Call::RoundWeights(weights),
        Call::WeightedExtents,
        Call::CountSmall(vec![None, Some(0.1)], true),
        Call::VarianceSums(vec![Moments { middle: 0.5, first: one, second: two }]),
        Call::CountDigits(vec![[1, 300], [u64::MAX, 0]], 24),
        Call::NegativeWeight,
        Call::BadCounts,
        Call::Refused,
        Call::Nonzero,
        Call::WeightsBelow(f64::MIN_POSITIVE / 8.0),
        Call::Begin(statistics, 300),
        Call::Selection,
        Call::ValueDigits(beginning.clone()),
        Call::ValueRows(beginning),
        Call::Weigh,
        Call::Lower(DistanceScale::new(3.7, 1.5)),
        Call::Gains,
        Call::Pick(Draw::Totals(DrawBy::Weight, vec![300])),
        Call::Pick(Draw::Totals(DrawBy::Distance, vec![0, 1, u128::MAX, 1 << 127])),
        Call::Pick(Draw::Totals(DrawBy::Positive, vec![])),
        Call::Pick(Draw::Each(sample)),
        Call::Pick(Draw::All),
        Call::Masses,
        Call::EndDraws,
        Call::Reset,
        Call::Assign(true),
        Call::Farthest(300, vec![true, false]),
        Call::Relocate(vec![Move { row: 300, to: 4 }]),
        Call::Inertia(vec![DistanceScale::new(3.7, 1.5), DistanceScale::NONE]),
        Call::Labels,
        Call::Nearest,
    ]
}

/// One of each reply.
fn replies() -> Vec<Reply> {
    let extent = Extent { low: -1.5, high: 2.5, largest: 2.5, smallest: 0.1 };
    let survey = Survey {
        columns: vec![extent, Extent::EMPTY],
        largest: 3.5,
        largest_weight: 4.5,
        smallest_weight: f64::INFINITY,
        all_weights_one: true,
        any_negative_weight: false,
        bad: 300,
        positive: 400,
    };
    let work_counts = WorkCounts { settled: Some(300), scores: None, rescored: Some(4), groups: Some(5) };
    let assigned = Assigned { changed: 300, inertia: Some(vec![1 << 90, 7]), work_counts };
    let sums =
        ClusterSums { d: 3, sums: vec![i128::MIN, i128::MAX, -1], mass: vec![300], rows: vec![i64::MIN], dirty: vec![true] };
    let facts = Facts {
        names: Names::Entries { column: "e".into(), width: 300 },
        float64: true,
        rows: 301,
        weighted: false,
        computed: true,
    };
    vec![
        Reply::Done,
        Reply::Facts(facts),
        Reply::Survey(survey),
        Reply::Extents(vec![extent]),
        Reply::Counts(vec![[1, 2, 300]]),
        Reply::Moments(vec![[-300, 1 << 100]]),
        Reply::Digits(vec![300, 0, 7]),
        Reply::NegativeWeight(Some((300, -0.5))),
        Reply::Refused(Refused { overflow: Some(300), zero_rows: 4 }),
        Reply::Nonzero(vec![[true, false]]),
        Reply::Number(300),
        Reply::Selection(Some(vec![u64::MAX, 5])),
        Reply::Began([300, 299]),
        Reply::ValueDigits(vec![(300, 1 << 70, 5)]),
        Reply::Rows(vec![300, 2], vec![0.5, -0.0]),
        Reply::Totals(vec![u128::MAX, 300]),
        Reply::Assigned(assigned, sums.clone()),
        Reply::Sums(sums),
        Reply::Far(vec![Far { distance: 0.3, row: 300, cluster: 4 }]),
        Reply::Labels(vec![300, u32::MAX]),
        Reply::Nearest(vec![7], Distances { nearest: vec![0.5], second: Some(vec![0.75]) }),
    ]
}

/// The name and the body of an example of every message, and the names of the variants of the enums in them.
fn layout() -> String {
    let mut text = String::new();
    let mut line = |name: &str, bytes: &[u8]| {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(text, "{name} {hex}").unwrap();
    };
    let head = RequestStates { fit: u64::MAX, before: 300, after: 2 };
    for call in calls() {
        let name = format!("call {}", call.name());
        let request: Request = (head, vec![Asked { call, values: vec![0.5, -0.0] }]);
        let bytes = encode(REQUEST, &request).unwrap();
        // The bytes say all of it.
        assert_eq!(format!("{:?}", decode::<Request>(REQUEST, &bytes).unwrap()), format!("{request:?}"));
        line(&name, &bytes[HEAD..]);
    }
    let names = variants::<Reply>();
    let answers = replies().into_iter().map(|reply| {
        let name = names[usize::from(postcard::to_allocvec(&reply).unwrap()[0])];
        (format!("reply {name}"), Answer::Replies(vec![(reply, vec![1.0 / 3.0])]))
    });
    let others = [("answer Lost".into(), Answer::Lost), ("answer Failed".into(), Answer::Failed(KMeansError::Cancelled))];
    for (name, answer) in answers.chain(others) {
        let bytes = encode(ANSWER, &answer).unwrap();
        assert_eq!(decode::<Answer>(ANSWER, &bytes).unwrap(), answer);
        line(&name, &bytes[HEAD..]);
    }
    let enums = [
        ("Call", variants::<Call>()),
        ("Reply", names),
        ("Answer", variants::<Answer>()),
        ("KMeansError", variants::<KMeansError>()),
        ("Names", variants::<Names>()),
        ("Metric", variants::<Metric>()),
        ("Limbs", variants::<Limbs>()),
        ("DrawBy", variants::<DrawBy>()),
    ];
    for (name, variants) in enums {
        writeln!(text, "enum {name} {}", variants.join(" ")).unwrap();
    }
    text
}

unit_test!(every_message_has_the_bytes_of_its_version);
fn every_message_has_the_bytes_of_its_version() {
    let index = |message: Vec<u8>| usize::from(message[0]);
    let calls: BTreeSet<usize> = calls().iter().map(|call| index(postcard::to_allocvec(call).unwrap())).collect();
    let replies: BTreeSet<usize> = replies().iter().map(|reply| index(postcard::to_allocvec(reply).unwrap())).collect();
    let missing = |names: &[&'static str], examples: &BTreeSet<usize>| -> Vec<&str> {
        (0..names.len()).filter(|i| !examples.contains(i)).map(|i| names[i]).collect()
    };
    assert_eq!(missing(variants::<Call>(), &calls), [""; 0], "calls without an example in this file");
    assert_eq!(missing(variants::<Reply>(), &replies), [""; 0], "replies without an example in this file");
    let (path, layout) = (concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/messages.txt"), layout());
    if std::env::var_os("WRITE_GOLDEN").is_some() {
        std::fs::write(path, &layout).unwrap();
    }
    let golden = std::fs::read_to_string(path).unwrap();
    let other = layout.lines().zip(golden.lines()).find(|(now, before)| now != before);
    let what = other.map_or("the number of messages changed".into(), |(now, before)| format!("{now}\nin place of\n{before}"));
    // FNV-1a.
    let version = layout.bytes().fold(0x811c_9dc5u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    assert!(golden == layout, "the bytes of messages changed: raise VERSION to {version}, and WRITE_GOLDEN=1. {what}");
    assert_eq!(VERSION, version, "the bytes of messages changed: raise VERSION to {version}");
}

fn again(answer: &Answer) -> Answer {
    decode(ANSWER, &encode(ANSWER, answer).unwrap()).unwrap()
}

unit_test!(messages_keep_every_bit);
fn messages_keep_every_bit() {
    let numbers = [0.0, -0.0, 1.0 / 3.0, f64::MIN_POSITIVE / 8.0, f64::MAX, f64::INFINITY, f64::NEG_INFINITY];
    let request =
        (RequestStates { fit: u64::MAX, before: 1, after: 2 }, vec![Asked { call: Call::Gains, values: numbers.to_vec() }]);
    let back: Request = decode(REQUEST, &encode(REQUEST, &request).unwrap()).unwrap();
    assert_eq!(format!("{back:?}"), format!("{request:?}"));
    assert!(back.1[0].values.iter().zip(numbers).all(|(a, b)| a.to_bits() == b.to_bits()));
}

unit_test!(errors_arrive_as_they_were);
fn errors_arrive_as_they_were() {
    let errors = [
        KMeansError::InvalidOption { option: "init", expected: "a".into(), got: "b".into() },
        KMeansError::ScaledOutOfRange { column: "x".into(), factor: 2.5, how: "overflow" },
        KMeansError::NoMemory { what: "the labels".into(), bytes: Some(7) },
        KMeansError::WidthMismatch { what: "features", expected: 1, got: 2 },
        KMeansError::Cancelled,
    ];
    for error in errors {
        let answer = Answer::Failed(error);
        assert_eq!(again(&answer), answer);
    }
}

unit_test!(other_versions_and_other_bytes_are_refused);
fn other_versions_and_other_bytes_are_refused() {
    let good = encode(ANSWER, &Answer::Lost).unwrap();
    let error = |bytes: &[u8]| decode::<Answer>(ANSWER, bytes).unwrap_err().to_string();
    let mut other = good.clone();
    other[4..8].copy_from_slice(&9u32.to_le_bytes());
    assert!(error(&other).contains("one of version 9 (install one version"), "{}", error(&other));
    assert!(error(b"hello").contains("5 other bytes"));
    assert!(error(&good[..HEAD - 1]).contains("8 other bytes"));
    assert!(error(&good[..good.len() - 1]).contains("a damaged one"));
    assert!(error(&[&good[..], &[0, 0]].concat()).contains("one with 2 bytes too many"));
    assert!(decode::<Request>(REQUEST, &good).unwrap_err().to_string().contains("kind 2 in place of kind 1"));
}

// Replies that are wrong.

/// Changes a list, or one of its values.
fn change_list<V: Clone>(random: &mut Random, list: &mut Vec<V>, change: impl Fn(&mut Random, &mut V)) {
    let (sort, place) = (random.below(8), random.below(list.len().max(1) as u64) as usize);
    match sort {
        _ if list.is_empty() => {}
        0 => drop(list.pop()),
        1 => list.push(list[place].clone()),
        2 => list.reverse(),
        3 if random.below(4) == 0 => list.clear(),
        4 => list.rotate_left(place),
        _ => change(random, &mut list[place]),
    }
}

fn change_float(random: &mut Random, value: &mut f64) {
    let others = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, 1e300, 1e-300, *value + 1.0, -*value, *value * 2.0];
    *value = others[random.below(10) as usize];
}

/// Changes an integer of any type.
macro_rules! change_integer {
    ($random:expr, $value:expr) => {{
        let value = $value;
        let random: &mut Random = &mut *$random;
        *value = match random.below(8) {
            0 => 0,
            1 => 1,
            2 => value.wrapping_add(1),
            3 => value.wrapping_sub(1),
            4 => value.wrapping_mul(2),
            5 => !0 ^ *value,
            6 => !0 >> 1,
            _ => !0,
        }
    }};
}

fn change_sums(random: &mut Random, sums: &mut ClusterSums) {
    match random.below(6) {
        0 => sums.d = random.below(9) as usize,
        1 => change_list(random, &mut sums.sums, |random, sum| change_integer!(random, sum)),
        2 => change_list(random, &mut sums.mass, |random, mass| change_integer!(random, mass)),
        3 => change_list(random, &mut sums.rows, |random, rows| change_integer!(random, rows)),
        4 => change_list(random, &mut sums.dirty, |_, dirty| *dirty = !*dirty),
        // Rows and weights that agree.
        _ if sums.rows.len() > 1 => {
            let (from, to) = (random.below(sums.rows.len() as u64) as usize, random.below(sums.rows.len() as u64) as usize);
            let (rows, mass) = (std::mem::take(&mut sums.rows[from]), std::mem::take(&mut sums.mass[from]));
            sums.rows[to] += rows;
            sums.mass[to] += mass;
        }
        _ => {}
    }
}

fn change_extent(random: &mut Random, extent: &mut Extent) {
    let Extent { low, high, largest, smallest } = extent;
    let place = random.below(4) as usize;
    change_float(random, [low, high, largest, smallest].into_iter().nth(place).unwrap());
}

/// Makes another reply of a reply.
fn change_reply(random: &mut Random, reply: &mut Reply) {
    if random.below(8) == 0 {
        let mut others = replies();
        *reply = others.swap_remove(random.below(others.len() as u64) as usize);
        return;
    }
    match reply {
        Reply::Done => {}
        Reply::Facts(facts) => match random.below(5) {
            0 => facts.names = Names::Entries { column: "x".into(), width: random.below(4) as usize },
            1 => facts.float64 = !facts.float64,
            2 => change_integer!(random, &mut facts.rows),
            3 => facts.weighted = !facts.weighted,
            _ => facts.computed = !facts.computed,
        },
        Reply::Survey(survey) => match random.below(8) {
            0 => change_float(random, &mut survey.largest),
            1 => change_float(random, &mut survey.largest_weight),
            2 => change_float(random, &mut survey.smallest_weight),
            3 => survey.all_weights_one = !survey.all_weights_one,
            4 => survey.any_negative_weight = !survey.any_negative_weight,
            5 => change_integer!(random, &mut survey.bad),
            6 => change_integer!(random, &mut survey.positive),
            _ => change_list(random, &mut survey.columns, change_extent),
        },
        Reply::Extents(extents) => change_list(random, extents, change_extent),
        Reply::Counts(counts) => {
            change_list(random, counts, |random, counts| change_integer!(random, &mut counts[random.below(3) as usize]))
        }
        Reply::Moments(sums) => {
            change_list(random, sums, |random, sums| change_integer!(random, &mut sums[random.below(2) as usize]))
        }
        Reply::Digits(counts) => {
            let set: Vec<usize> = (0..counts.len()).filter(|i| counts[*i] > 0).collect();
            match set.get(random.below(set.len().max(1) as u64) as usize) {
                Some(place) if random.below(2) == 0 => change_integer!(random, &mut counts[*place]),
                _ => change_list(random, counts, |random, count| change_integer!(random, count)),
            }
        }
        Reply::NegativeWeight(found) => *found = Some((random.bits(40), [-1.0, 1.0, f64::NAN][random.below(3) as usize])),
        Reply::Refused(refused) => match random.below(2) {
            0 => refused.overflow = Some(random.below(5) as usize),
            _ => change_integer!(random, &mut refused.zero_rows),
        },
        Reply::Nonzero(columns) => change_list(random, columns, |_, column| *column = [!column[0], !column[1]]),
        Reply::Number(rows) => change_integer!(random, rows),
        Reply::Selection(bits) => match bits {
            Some(bits) if random.below(4) > 0 => change_list(random, bits, |random, word| change_integer!(random, word)),
            _ => *bits = if bits.is_some() { None } else { Some(vec![!0; 2]) },
        },
        Reply::Began(rows) => change_integer!(random, &mut rows[random.below(2) as usize]),
        Reply::ValueDigits(digits) => change_list(random, digits, |random, (digit, weight, rows)| match random.below(3) {
            0 => change_integer!(random, digit),
            1 => change_integer!(random, weight),
            _ => change_integer!(random, rows),
        }),
        Reply::Rows(rows, weights) => match random.below(2) {
            0 => change_list(random, rows, |random, row| change_integer!(random, row)),
            _ => change_list(random, weights, change_float),
        },
        Reply::Totals(totals) => change_list(random, totals, |random, total| change_integer!(random, total)),
        Reply::Assigned(assigned, sums) => match (random.below(4), &mut assigned.inertia) {
            (0, _) => change_integer!(random, &mut assigned.changed),
            (1, Some(inertia)) => change_list(random, inertia, |random, total| change_integer!(random, total)),
            (1, inertia) => *inertia = Some(vec![1; 6]),
            _ => change_sums(random, sums),
        },
        Reply::Sums(sums) => change_sums(random, sums),
        Reply::Far(far) => change_list(random, far, |random, far| match random.below(3) {
            0 => change_float(random, &mut far.distance),
            1 => change_integer!(random, &mut far.row),
            _ => far.cluster = [0, 1, 5, 6, 99, u32::MAX][random.below(6) as usize],
        }),
        Reply::Labels(labels) => change_list(random, labels, |random, label| change_integer!(random, label)),
        Reply::Nearest(labels, Distances { nearest, second }) => match (random.below(4), second) {
            (0, _) => change_list(random, labels, |random, label| change_integer!(random, label)),
            (1, _) => change_list(random, nearest, change_float),
            (2, Some(second)) => change_list(random, second, change_float),
            (_, second) => *second = if second.is_some() { None } else { Some(vec![1.0; nearest.len()]) },
        },
    }
}

/// Makes another answer of an answer.
fn change_answer(random: &mut Random, answer: &mut Vec<u8>) {
    let Ok(Answer::Replies(mut replies)) = decode::<Answer>(ANSWER, answer) else { return };
    let last = replies.len() - 1;
    let changed = match random.below(24) {
        0 => Answer::Lost,
        1 => Answer::Failed(KMeansError::Part { reason: "a lie".into() }),
        2 => {
            let (place, bit) = (random.below(answer.len() as u64) as usize, random.below(8));
            answer[place] ^= 1 << bit;
            return;
        }
        3 => return answer.truncate(random.below(answer.len() as u64) as usize),
        sort => {
            // Mostly the reply that the driver waits for. Others are of calls that wait, and of repeated calls.
            let place = if sort < 8 || sort % 4 == 0 { random.below(last as u64 + 1) as usize } else { last };
            let (reply, found) = &mut replies[place];
            match sort {
                4 => drop(replies.pop()),
                5 => replies.push((Reply::Done, Vec::new())),
                6 => replies.reverse(),
                7 | 8 => change_list(random, found, change_float),
                _ => change_reply(random, reply),
            }
            Answer::Replies(replies)
        }
    };
    *answer = encode(ANSWER, &changed).unwrap();
}

/// Workers in this process. The answer of one of them to one message is another one; to all later ones too, if `always`.
struct Liar {
    workers: Vec<Worker>,
    random: Random,
    messages: usize,
    lie: Option<(usize, usize)>,
    always: bool,
}

impl Executor for Liar {
    fn parts(&self) -> usize {
        self.workers.len()
    }

    fn ask(&mut self, requests: &[(usize, Arc<[u8]>)]) -> Result<Vec<Vec<u8>>> {
        let message = self.messages;
        self.messages += 1;
        assert!(message <= 3_000, "too many messages");
        let mut answers: Vec<Vec<u8>> =
            requests.iter().map(|(worker, request)| self.workers[*worker].answer(request)).collect();
        for ((worker, _), answer) in requests.iter().zip(&mut answers) {
            if self.lie.is_some_and(|(at, who)| who == *worker && (message == at || self.always && message > at)) {
                change_answer(&mut self.random, answer);
            }
        }
        Ok(answers)
    }
}

/// Small fits that make most kinds of calls, and what is wanted of the rows.
fn small_fits() -> Vec<(KMeans, Wanted)> {
    let start = |k: usize| Init::Given((0..3 * k).map(|i| if i < 3 * k - 3 { 0.5 } else { 400.0 }).collect());
    let few = KMeans::new(6).seed(3).max_iter(4).null_policy(NullPolicy::Skip).threads(1);
    vec![
        (few.clone(), Wanted::Distances),
        (few.clone().init(Init::KMeansParallel).rounds(2).n_init(Restarts::Count(2)), Wanted::Labels),
        (few.clone().init(Init::KMeansParallel).rounds(2).row_order(RowOrder::Values), Wanted::Labels),
        (few.clone().init(Init::Random).n_init(Restarts::Count(2)).history(crate::History::Full), Wanted::Labels),
        (few.clone().init(start(6)), Wanted::Labels),
        (few.clone().init(Init::AfkMc2).chain_length(5).metric(Metric::Cosine), Wanted::Labels),
        (few.clone().init_sample(Some(100)), Wanted::Nothing),
        (few.clone().scale(Scale::Standard), Wanted::Labels),
        (few.clone().scale(Scale::Robust), Wanted::Labels),
        (KMeans { k: 230, ..few.clone().too_few(TooFew::Fewer) }, Wanted::Labels),
        (few.null_policy(NullPolicy::Raise), Wanted::Labels),
    ]
}

fn check_fitted<T: Float>(fitted: &Fitted<T>, estimator: &KMeans, wanted: Wanted) {
    let model = &fitted.model;
    let k = model.n_clusters();
    assert!(k >= 1 && k <= estimator.k && model.centroids().iter().all(|c| c.to_f64().is_finite()));
    assert!(model.inertia() >= 0.0 && model.inertia().is_finite() && model.sizes().len() == k);
    assert!(fitted.labels.iter().all(|label| (*label as usize) < k));
    let kept: usize = fitted.selection.iter().map(|(selection, n)| (0..*n).filter(|i| selection.contains(*i)).count()).sum();
    assert_eq!(fitted.labels.len(), kept);
    if wanted == Wanted::Distances {
        let distances = fitted.distances.as_ref().unwrap();
        assert!(distances.nearest.len() == kept && distances.nearest.iter().all(|distance| *distance >= 0.0));
    }
}

unit_test!(a_wrong_reply_is_an_error_or_changes_numbers);
fn a_wrong_reply_is_an_error_or_changes_numbers() {
    let random = &mut Random(5);
    let mut x: Vec<f64> =
        (0..3 * 240).map(|_| (random.unit() * 30.0).floor() + if random.below(4) == 0 { 300.0 } else { 0.0 }).collect();
    let plain = x.clone();
    (0..5).for_each(|i| x[100 * i + 7] = f64::NAN);
    let weights: Vec<f64> = (0..240).map(|_| random.below(4) as f64 * 0.7).collect();
    let lies: u64 = std::env::var("LIES").map_or(150, |lies| lies.parse().unwrap());
    let (mut errors, mut results, mut failures) = (0, 0, BTreeSet::new());
    for (number, (estimator, wanted)) in small_fits().iter().enumerate() {
        let run = |seed: u64, lie: Option<(usize, usize)>| {
            let (weighted, float32) = (seed.is_multiple_of(2), seed.is_multiple_of(3));
            let x = if number == 10 && !seed.is_multiple_of(4) { &plain } else { &x };
            let worker = |cut: &[usize]| {
                let (values, weights) = (x[3 * cut[0]..3 * cut[1]].to_vec(), weights[cut[0]..cut[1]].to_vec());
                fn worker<T: crate::Engine>(rows: OwnedRows<T>, weights: Option<Vec<f64>>) -> Worker {
                    Worker::new(if let Some(weights) = weights { rows.weighted(weights) } else { rows }).unwrap()
                }
                let weights = weighted.then_some(weights);
                match float32 {
                    true => worker(OwnedRows::new(values.iter().map(|x| *x as f32).collect(), 3), weights),
                    false => worker(OwnedRows::new(values, 3), weights),
                }
            };
            // Also one worker alone, whose word nothing contradicts.
            let cuts: &[usize] = if seed.is_multiple_of(5) { &[0, 240] } else { &[0, 31, 240] };
            let workers: Vec<Worker> = cuts.windows(2).map(worker).collect();
            let lie = lie.map(|(message, who)| (message, who % workers.len()));
            let mut liar = Liar { workers, random: Random(seed), messages: 0, lie, always: seed.is_multiple_of(7) };
            let found = catch_unwind(AssertUnwindSafe(|| fit(estimator, &mut liar, *wanted)));
            (found, liar.messages)
        };
        for seed in 1..=lies {
            let seed = 1_000 * number as u64 + seed;
            let (honest, messages) = run(seed, None);
            // Rows with a value that is not finite are refused, if the estimator says so.
            let refuses = number == 10 && seed.is_multiple_of(4);
            assert!(matches!(honest, Ok(Ok(_))) || refuses, "fit {number}, seed {seed}");
            let random = &mut Random(seed);
            let lie = (random.below(messages as u64) as usize, random.below(2) as usize);
            match run(seed, Some(lie)).0 {
                Ok(Ok(fitted)) => {
                    results += 1;
                    let checked = catch_unwind(AssertUnwindSafe(|| match &fitted {
                        AnyFitted::F32(fitted) => check_fitted(fitted, estimator, *wanted),
                        AnyFitted::F64(fitted) => check_fitted(fitted, estimator, *wanted),
                    }));
                    if checked.is_err() {
                        failures.insert(format!("fit {number}, seed {seed}: no well-formed result"));
                    }
                }
                Ok(Err(error)) if error.to_string().contains("panic") => {
                    failures.insert(format!("fit {number}, seed {seed}: {error}"));
                }
                Ok(Err(_)) => errors += 1,
                Err(panic) => {
                    let words = panic.downcast_ref::<String>().cloned();
                    let words = words.or(panic.downcast_ref::<&str>().map(|words| (*words).to_owned()));
                    failures.insert(format!("fit {number}, seed {seed}: {}", words.unwrap_or_default()));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} failures: {failures:#?}", failures.len());
    assert!(errors > results && results > 0, "{errors} errors, {results} results");
}
