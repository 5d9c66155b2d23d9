//! Models of groups as a file: damage of every kind, also with a checksum that was set right afterwards.

use std::sync::Arc;

use arrow::datatypes::Schema;
use polars_kmeans::model::groups::{Groups, Key, Keys};
use polars_kmeans::{KMeansError, KMeansModel};

use super::{BODY_AT, body_end, of_lists, scaled, small, with_body};

/// Three groups, one of which has no model. Their keys have values of all kinds.
fn file() -> Vec<u8> {
    let models = [small(), of_lists("e", 3)].map(|model| model.to_saved_wire().unwrap());
    let key = |name, dtype, of: &[&'static str], values: [Key<'static>; 3]| Keys {
        name,
        dtype,
        of: of.to_vec(),
        values: values.to_vec(),
    };
    let keys = vec![
        key("shop", "Enum", &["north", "south"], [Key::Text("south"), Key::Null, Key::Text("north")]),
        key("day", "Datetime", &["us", "Europe/Berlin"], [Key::Integer(-1), Key::Integer(1 << 62), Key::Integer(i128::MIN)]),
        key("b", "Boolean", &[], [Key::Boolean(true), Key::Boolean(false), Key::Null]),
        key("f", "Float32", &[], [Key::Float(f64::NAN), Key::Float(-0.0), Key::Float(0.1)]),
        key("raw", "Binary", &[], [Key::Bytes(b""), Key::Bytes(b"\0\xFF"), Key::Null]),
    ];
    written(&Groups { keys, models: vec![Some(&models[0]), None, Some(&models[1])] })
}

/// The file of groups, with a table of nothing.
fn written(groups: &Groups<'_>) -> Vec<u8> {
    let schema = Arc::new(Schema::empty());
    groups.to_bytes(&schema, &[]).unwrap()
}

/// What a reader of a file gets: the file of the same groups, or the text of an error.
fn read(file: &[u8]) -> Result<Vec<u8>, String> {
    let groups = Groups::body(file).and_then(|body| Groups::of_body(&body).map(|groups| written(&groups)));
    groups.map_err(|error| match error {
        KMeansError::InvalidModel { .. } => error.to_string(),
        other => panic!("{other:?}"),
    })
}

#[test]
fn groups_are_read_as_they_were_written() {
    let file = file();
    assert_eq!(&file[..BODY_AT - 24], b"PAR1kmeans-groups\x01");
    assert!(read(&file).unwrap() == file);
    let body = Groups::body(&file).unwrap();
    let groups = Groups::of_body(&body).unwrap();
    assert_eq!(KMeansModel::from_wire(groups.models[0].unwrap()).unwrap().to_bytes(), small().to_bytes());
    assert_eq!(groups.keys[1].values[2], Key::Integer(i128::MIN));
}

#[test]
fn each_kind_of_file_names_the_other() {
    let error = KMeansModel::from_bytes(&file()).unwrap_err().to_string();
    assert!(error.contains("got one of another kind: KMeansModels.load reads it"), "{error}");
    let error = read(&small().to_bytes().unwrap()).unwrap_err();
    assert!(error.contains("a file that KMeansModels.save wrote, got one of another kind: KMeansModel.load reads it"));
}

#[test]
fn what_no_fit_makes_is_refused() {
    let model = scaled().to_saved_wire().unwrap();
    let keys = |name, n| Keys { name, dtype: "Int64", of: vec![], values: vec![Key::Integer(1); n] };
    let mut altered = model.clone();
    *altered.last_mut().unwrap() ^= 1;
    for (keys, model, message) in [
        (vec![], &model, "different names of keys, got {}"),
        (vec![keys("a", 1), keys("a", 1)], &model, "different names of keys"),
        (vec![keys("a\0", 1)], &model, "different names of keys"),
        (vec![keys("a", 2)], &model, "1 keys, one for each model, got 2"),
        (vec![keys("a", 0)], &model, "1 keys, one for each model, got 0"),
        (vec![keys("a", 1)], &altered, "a model that fits its checksum"),
    ] {
        let groups = Groups { keys, models: vec![Some(model)] };
        let error = groups.to_bytes(&Arc::new(Schema::empty()), &[]).unwrap_err().to_string();
        assert!(error.contains(message), "{message}: {error}");
        let error = read(&with_body(&file(), &postcard_of(&groups))).unwrap_err();
        assert!(error.contains(message), "{message}: {error}");
    }
    let more = [&file()[BODY_AT..body_end(&file())], b"\n"].concat();
    assert!(read(&with_body(&file(), &more)).unwrap_err().contains("nothing after the groups, got 1 bytes"));
}

/// Groups as a body, whether they are right or not. Lengths below 128 are one byte.
fn postcard_of(groups: &Groups<'_>) -> Vec<u8> {
    let mut body = vec![groups.keys.len() as u8];
    for keys in &groups.keys {
        for text in [keys.name, keys.dtype] {
            body.push(text.len() as u8);
            body.extend(text.bytes());
        }
        body.extend([0, keys.values.len() as u8]);
        // The variant of whole numbers, and 1 as a zigzag number.
        body.extend(keys.values.iter().flat_map(|_| [2, 2]));
    }
    body.push(groups.models.len() as u8);
    for model in &groups.models {
        let model = model.unwrap();
        body.extend([1, model.len() as u8 | 128, (model.len() >> 7) as u8]);
        body.extend(model);
    }
    body
}

#[test]
fn every_flip_and_every_cut_is_noticed() {
    let file = file();
    for bit in 0..file.len() * 8 {
        let mut flipped = file.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        // Load does not look at the table, which is between the payload and the mark at the end.
        let in_table = (body_end(&file)..file.len() - 4).contains(&(bit / 8));
        assert_eq!(read(&flipped).is_ok_and(|same| same == file), in_table, "bit {bit}");
    }
    for cut in 0..file.len() {
        assert!(read(&file[..cut]).is_err(), "{cut}");
    }
}

/// Numbers that look random, always the same.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n.max(1)
    }
}

/// One edit of a body: other bytes, a number that claims a length, bytes that are gone or there many times, an end.
fn edit(body: &mut Vec<u8>, random: &mut Random) {
    // Models have checksums of their own. So half of the edits are among the keys, which come first.
    let most = if random.below(2) == 0 { body.len() } else { body.len().min(200) };
    let at = random.below(most);
    let end = (at + random.below(40)).min(body.len());
    match random.below(6) {
        0 | 1 => body.iter_mut().skip(at).take(1).for_each(|byte| *byte = random.below(256) as u8),
        2 => {
            let claims: [&[u8]; 4] =
                [&[127], &[255, 127], &[255, 255, 255, 255, 15], &[255, 255, 255, 255, 255, 255, 255, 255, 127]];
            body.splice(at..(at + 1).min(body.len()), claims[random.below(4)].iter().copied());
        }
        3 => drop(body.drain(at..end)),
        4 => {
            let copies = body[at..end].repeat(1 + random.below(200));
            body.splice(at..at, copies);
        }
        _ => body.truncate(at),
    }
}

#[test]
fn edits_with_a_right_checksum_give_groups_or_an_error() {
    let (file, mut random) = (file(), Random(1));
    let body = file[BODY_AT..body_end(&file)].to_vec();
    let before = peak();
    let (mut fine, mut refused) = (0, 0);
    for _ in 0..20_000 {
        let mut edited = body.clone();
        for _ in 0..1 + random.below(4) {
            edit(&mut edited, &mut random);
        }
        // What is read is written and read again as the same.
        match read(&with_body(&file, &edited)) {
            Ok(again) => {
                assert!(read(&again).unwrap() == again);
                fine += 1;
            }
            Err(_) => refused += 1,
        }
    }
    assert!(fine > 500 && refused > 5_000, "{fine} {refused}");
    assert!(peak() - before < 64 << 20, "{} MiB more", (peak() - before) >> 20);
}

/// The most bytes of memory that this process has had at any time, where the system says it.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) << 10
}
