//! The layers of `src`: a file imports its own layer and those below it, never one above. Few types share a name. The type of a
//! vector is a token of its instruction set.
//!
//! Imports are the paths that begin with `crate`, `super` or `self`. Comments and unit tests do not count. A path to a name that a
//! module imports itself leads to the file that has the name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The layers from top to bottom: folders of `src`, and files of the same names.
const LAYERS: &[&[&str]] = &[
    &["plugin"],
    &["frame", "batch"],
    &["columns"],
    &["distributed"],
    &["tree"],
    &["fit"],
    &["model"],
    &["seeding"],
    &["backend"],
    &["bounds"],
    &["statistics"],
    &["input"],
    &["exact"],
    &["simd"],
    &["base"],
];
/// The most files of a layer that may import one another in a circle.
const MOST: usize = 12;
/// The most names that more than one type has.
const SHARED_NAMES: usize = 20;

type Name = Vec<String>;
type Links = BTreeMap<Name, BTreeSet<Name>>;

fn layer(module: &[String]) -> Option<usize> {
    LAYERS.iter().position(|folders| folders.contains(&module.first().map_or("", |first| &first[..])))
}

/// The text without comments and unit tests. Lines stay where they are.
fn code(text: &str) -> String {
    let (mut out, mut tests, mut before) = (String::new(), false, "");
    for line in text.lines() {
        tests |= before.contains("feature = \"tests\"") && line.starts_with("mod ") && line.ends_with('{');
        out += if tests { "" } else { line.split("//").next().unwrap_or("") };
        out.push('\n');
        tests &= line != "}";
        before = line;
    }
    out
}

/// The paths of a tree of imports, such as `a::{b, c::d as e}`: each with the name that it gets.
fn leaves(tree: &str, before: &[&str], out: &mut Vec<(Name, String)>) {
    let tree = tree.trim();
    if let Some((head, rest)) = tree.split_once('{') {
        let before: Vec<&str> =
            before.iter().copied().chain(head.split("::").map(str::trim).filter(|s| !s.is_empty())).collect();
        let rest = &rest[..rest.rfind('}').expect("the tree is closed")];
        let (mut depth, mut start) = (0, 0);
        for (at, c) in rest.char_indices().chain([(rest.len(), ',')]) {
            depth += i32::from(c == '{') - i32::from(c == '}');
            if c == ',' && depth == 0 {
                leaves(&rest[start..at], &before, out);
                start = at + 1;
            }
        }
    } else if !tree.is_empty() {
        let (path, alias) = tree.split_once(" as ").unwrap_or((tree, ""));
        let path: Name = before.iter().copied().chain(path.split("::").map(str::trim)).map(String::from).collect();
        let alias = if alias.is_empty() { path[path.len() - 1].clone() } else { alias.trim().into() };
        out.push((path, alias));
    }
}

/// A path in a file.
struct Import {
    line: usize,
    /// From the root.
    path: Name,
    /// The name that an import gives it. `None` elsewhere.
    name: Option<String>,
}

/// The imports of the file of a module, and the paths elsewhere in it.
fn imports(module: &[String], text: &str, is_module: impl Fn(&[String]) -> bool) -> Vec<Import> {
    let mut found = Vec::new();
    let mut add = |line: usize, path: &[String], nested: bool, name: Option<String>| {
        let ups = path.iter().filter(|part| *part == "super").count();
        let child = [module, &path[..1]].concat();
        let base = match &path[0][..] {
            "crate" => &[][..],
            // In a module within a file, `super` is the module of the file.
            "super" => &module[..(module.len() + usize::from(nested)).saturating_sub(ups)],
            "self" => module,
            _ if is_module(&child) => module,
            _ => return,
        };
        let rest = path.iter().filter(|part| !["crate", "super", "self", "*"].contains(&&part[..]));
        found.push(Import { line, path: base.iter().chain(rest).cloned().collect(), name });
    };
    let mut statement = String::new();
    for (number, line) in text.lines().enumerate() {
        let head = line.trim_start();
        let (visibility, _) = head.split_once("use ").unwrap_or(("none", ""));
        if !statement.is_empty() || visibility.is_empty() || visibility.starts_with("pub") && visibility.ends_with(' ') {
            statement += line;
        } else {
            for (at, _) in ["crate::", "super::"].iter().flat_map(|start| line.match_indices(start)) {
                let before = line[..at].chars().next_back().unwrap_or(' ');
                let path = line[at..].split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')).next().unwrap_or("");
                if !before.is_alphanumeric() && !":_".contains(before) && !line[..at].ends_with("(in ") {
                    let path: Name = path.trim_end_matches(':').split("::").map(String::from).collect();
                    add(number + 1, &path, false, None);
                }
            }
        }
        if let Some((_, tree)) = statement.strip_suffix(';').and_then(|whole| whole.split_once("use ")) {
            let mut trees = Vec::new();
            leaves(tree, &[], &mut trees);
            trees.into_iter().for_each(|(path, name)| add(number + 1, &path, line.starts_with(' '), Some(name)));
            statement.clear();
        }
    }
    found
}

/// The module whose file has what a path names.
fn target(path: &[String], texts: &BTreeMap<Name, (PathBuf, String)>, known: &BTreeMap<Name, Name>, depth: usize) -> Name {
    let len = (0..=path.len()).rev().find(|len| *len == 0 || texts.contains_key(&path[..*len])).unwrap_or(0);
    match path.get(..len + 1).and_then(|name| known.get(name)) {
        Some(real) if depth < 8 && !real.starts_with(&path[..len + 1]) => {
            target(&real.iter().chain(&path[len + 1..]).cloned().collect::<Name>(), texts, known, depth + 1)
        }
        _ => path[..len].to_vec(),
    }
}

fn read(folder: &Path, texts: &mut BTreeMap<Name, (PathBuf, String)>, root: &Path) {
    for entry in fs::read_dir(folder).expect("src can be read") {
        let path = entry.expect("src can be read").path();
        if path.is_dir() {
            read(&path, texts, root);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let module = path.strip_prefix(root).expect("a file of src").with_extension("");
            let parts = module.iter().map(|part| part.to_string_lossy().into_owned());
            let text = code(&fs::read_to_string(&path).expect("src can be read"));
            texts.insert(parts.filter(|part| part != "mod").collect(), (path, text));
        }
    }
}

/// All files that a file needs, itself only if it is in a circle.
fn reach(from: &Name, links: &Links) -> BTreeSet<Name> {
    let (mut seen, mut open) = (BTreeSet::new(), vec![from.clone()]);
    while let Some(next) = open.pop() {
        let all = links.get(&next).into_iter().flatten();
        open.extend(all.filter(|to| seen.insert((*to).clone())).cloned());
    }
    seen
}

#[test]
fn no_file_imports_a_layer_above() {
    let (root, mut texts) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), BTreeMap::new());
    read(&root, &mut texts, &root);
    let of = |module: &Name| imports(module, &texts[module].1, |path| texts.contains_key(path));
    let mut known = BTreeMap::new();
    for module in texts.keys() {
        for import in of(module) {
            let Some(name) = import.name else { continue };
            known.insert(module.iter().cloned().chain([name]).collect::<Name>(), import.path);
        }
    }
    let (mut links, mut wrong) = (Links::new(), Vec::new());
    for (module, (file, _)) in &texts {
        let Some(own) = layer(module) else { continue };
        for Import { line, path, .. } in of(module) {
            let there = target(&path, &texts, &known, 0);
            let place = format!("{}:{line}: {}", file.display(), path.join("::"));
            match layer(&there) {
                Some(other) if other < own => wrong.push(format!("{place} is in a layer above")),
                Some(_) => drop(links.entry(module.clone()).or_default().insert(there)),
                None if path.first().is_some_and(|first| first == "unit_tests") => {}
                None => wrong.push(format!("{place}: name the module, not what lib.rs passes on")),
            }
        }
        links.entry(module.clone()).or_default().remove(module);
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    // A circle across layers would need an import of a layer above. So circles lie inside layers.
    let needs: Links = links.keys().map(|module| (module.clone(), reach(module, &links))).collect();
    for module in links.keys() {
        let circle = links.keys().filter(|other| needs[module].contains(*other) && needs[*other].contains(module));
        let circle: Vec<_> = circle.map(|other| other.join("::")).collect();
        assert!(circle.len() <= MOST, "{} files import one another: {circle:#?}", circle.len());
    }
}

/// The names in a text that come right after one of these words, without the dollar signs of macros.
fn names_after<'t>(text: &'t str, before: &'t str) -> impl Iterator<Item = &'t str> {
    let name = |(at, _): (usize, &str)| {
        let rest = &text[at + before.len()..];
        rest.split(|c: char| !(c.is_alphanumeric() || c == '_')).next().filter(|name| !name.is_empty())
    };
    text.match_indices(before).filter_map(name)
}

/// What is wrong in files of `src`, given by their paths below it, with the types of instruction sets: see the head of `simd.rs`.
fn leaks(texts: &BTreeMap<PathBuf, String>) -> Vec<String> {
    const TRAITS: [&str; 3] = ["Vector for ", "Doubles for ", "Dot for "];
    /// Types that every machine may use.
    const FREE: [&str; 2] = ["Portable", "PortableDoubles"];
    let (mut tokens, mut wrong) = (BTreeSet::new(), Vec::new());
    for (file, text) in texts {
        let names = TRAITS.iter().flat_map(|name| names_after(text, name)).filter(|name| !FREE.contains(name));
        match file.starts_with("simd") {
            true => tokens.extend(names),
            false => wrong.extend(names.map(|name| format!("{}: implements a vector: {name}", file.display()))),
        }
    }
    for (file, text) in texts {
        let here = file.display();
        for line in text.lines().map(str::trim) {
            let named = |name: &&str| line.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|word| word == *name);
            let Some(token) = tokens.iter().find(|name| named(name)) else { continue };
            let declared = line.contains(&format!("struct {token}"));
            if declared && !["pub(super) ", "pub(in crate::simd) "].iter().any(|open| line.starts_with(open)) {
                wrong.push(format!("{here}: {token} is visible outside simd: {line}"));
            }
            if line.starts_with("pub") && line.contains(" use ")
                || line.contains("type ") && !["type Doubles = ", "type V = "].iter().any(|own| line.starts_with(own))
            {
                wrong.push(format!("{here}: {token} gets another name: {line}"));
            }
        }
        let of_types = names_after(text, ".run::<").filter(|name| !FREE.contains(name) && !["Self", "V", "D"].contains(name));
        for name in of_types.filter(|name| !file.starts_with("simd") || !tokens.contains(name)) {
            wrong.push(format!("{here}: runs a task for {name}"));
        }
    }
    if tokens.len() < 5 {
        wrong.push(format!("expected at least five types of instruction sets, found {tokens:?}"));
    }
    wrong
}

#[test]
fn only_simd_names_the_types_of_instruction_sets() {
    let (root, mut texts) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), BTreeMap::new());
    read(&root, &mut texts, &root);
    let below = |(path, text): (PathBuf, String)| (path.strip_prefix(&root).expect("a file of src").into(), text);
    let texts: BTreeMap<PathBuf, String> = texts.into_values().map(below).collect();
    assert!(leaks(&texts).is_empty(), "\n{}", leaks(&texts).join("\n"));
    let broken: [(&str, &str, &str); 5] = [
        ("backend/cpu/tree.rs", "", "unsafe impl Vector for Wide {"),
        ("simd/x86.rs", "pub(super) struct Avx2(", "pub struct Avx2("),
        ("simd.rs", "", "pub use x86::Avx512;"),
        ("simd/tiles.rs", "", "pub type Widest = Avx512;"),
        ("backend/cpu/tree.rs", "", "task.run::<Wide>();"),
    ];
    for (file, old, new) in broken {
        let mut texts = texts.clone();
        let text = texts.get_mut(Path::new(file)).expect("the file is there");
        *text = if old.is_empty() { format!("{text}\n{new}\n") } else { text.replace(old, new) };
        assert_eq!(leaks(&texts).len(), 1, "{new}: {:?}", leaks(&texts));
    }
}

/// The name of the type that a line defines. An associated type has the name that its trait chose, so it does not count.
fn defined(line: &str) -> Option<&str> {
    let head = line.trim_start();
    let nested = head.len() < line.len();
    let head = match head.strip_prefix("pub(") {
        Some(rest) => rest.split_once(") ").map_or("", |(_, head)| head),
        None => head.strip_prefix("pub ").unwrap_or(head),
    };
    let (kind, rest) = head.strip_prefix("unsafe ").unwrap_or(head).split_once(' ')?;
    let counts = ["struct", "enum", "trait", "union"].contains(&kind) || kind == "type" && !nested;
    let name = rest.split(|c: char| !(c.is_alphanumeric() || c == '_')).next()?;
    (counts && !name.is_empty()).then_some(name)
}

#[test]
fn few_types_share_a_name() {
    let (root, mut texts) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), BTreeMap::new());
    read(&root, &mut texts, &root);
    let mut files = BTreeMap::<&str, Vec<String>>::new();
    for (file, text) in texts.values() {
        text.lines().filter_map(defined).for_each(|name| files.entry(name).or_default().push(file.display().to_string()));
    }
    assert!(files.len() > 500, "{} names", files.len());
    files.retain(|_, files| files.len() > 1);
    assert!(files.len() <= SHARED_NAMES, "{} names have more than one type: {files:#?}", files.len());
}
