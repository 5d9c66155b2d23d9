//! The generator of layout assertions (`build/layouts.rs`). nvcc and rustc check what it writes whenever the kernels are built. Here
//! it is held to `repr(C)` itself, and to its errors.

#[path = "../build/layouts.rs"]
mod layouts;

use layouts::Layouts;
use std::collections::BTreeMap;
use std::mem::{offset_of, size_of};
use std::path::PathBuf;

/// As in `build.rs`.
type Result<T> = std::result::Result<T, String>;

const SCALE: &str = "struct Scale {\n};\n";
const ASSIGN: &str = "template <typename T> struct Assign {\n};\n";

/// The declarations of a file that holds these lines in a block.
fn read(lines: &str) -> Result<Layouts> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("arguments.rs");
    std::fs::write(&file, format!("//! Text.\n\narguments! {{\n{lines}\n}}\n\nfn other() {{}}\n")).unwrap();
    Layouts::read(&[file])
}

fn sources(files: &[(&str, &str)]) -> BTreeMap<PathBuf, String> {
    files.iter().map(|(file, text)| (PathBuf::from(file), text.to_string())).collect()
}

#[track_caller]
fn has(text: &str, part: &str) {
    assert!(text.contains(part), "expected {part:?} in\n{text}");
}

#[test]
fn offsets_are_those_of_repr_c() {
    #[repr(C)]
    #[allow(dead_code)]
    struct Scale {
        first: u8,
        second: f64,
        three: [u16; 3],
        last: i32,
    }
    #[repr(C)]
    #[allow(dead_code)]
    struct Assign<T> {
        k: u32,
        scale: T,
        inner: [Scale; 2],
        end: u8,
    }
    let declared = "    /// Doc: with { braces }, and commas.
        Scale as \"Scale\" { first: u8, second: f64, three: [u16; 3], last: i32 }
        Assign<T> as \"Assign\" {
            k: u32, // a comment
            #[allow(unused)]
            /// More doc.
            scale: T,
            inner: [Scale; 2],
            end: u8,
        }";
    let layouts = read(declared).unwrap();
    let both = sources(&[("kernels/a.cu", ASSIGN), ("kernels/b.cuh", SCALE)]);
    let cuda = layouts.cuda_assertions(&both).unwrap();
    let rust = layouts.rust_assertions(&both).unwrap();
    macro_rules! check {
        ($cuda:literal, $rust:ty, $($field:ident)*) => {
            has(&cuda, &format!("static_assert(sizeof({}) == {},", $cuda, size_of::<$rust>()));
            has(&rust, &format!("assert!(std::mem::size_of::<{}>() == {},", stringify!($rust), size_of::<$rust>()));
            $(
                has(&cuda, &format!("static_assert(offsetof({}, {}) == {},", $cuda, stringify!($field), offset_of!($rust, $field)));
                let offset = offset_of!($rust, $field);
                has(&rust, &format!("assert!(std::mem::offset_of!({}, {}) == {offset},", stringify!($rust), stringify!($field)));
            )*
        };
    }
    check!("::Scale", Scale, first second three last);
    check!("::Assign<float>", Assign<f32>, k scale inner end);
    check!("::Assign<double>", Assign<f64>, k scale inner end);
    assert_ne!(offset_of!(Assign<f32>, inner), offset_of!(Assign<f64>, inner));
}

#[test]
fn a_template_may_have_one_layout() {
    let layouts = read("Settle as \"Assign\" { rows: u64 }").unwrap();
    let text = layouts.cuda_assertions(&sources(&[("kernels/a.cu", ASSIGN)])).unwrap();
    has(&text, "sizeof(::Assign<float>) == 8");
    has(&text, "sizeof(::Assign<double>) == 8");
}

#[test]
fn a_template_may_have_a_type_of_values_in_memory() {
    let stored = ASSIGN.replace("typename T", "typename T, typename S = T");
    let layouts = read("Assign<T> as \"Assign\" { rows: u64, scale: T }").unwrap();
    let text = layouts.cuda_assertions(&sources(&[("kernels/a.cu", &stored)])).unwrap();
    has(&text, "offsetof(::Assign<float>, scale) == 8");
    has(&text, "sizeof(::Assign<double>) == 16");
}

#[test]
fn a_module_is_told_only_of_its_own_structs() {
    let layouts = read("Scale as \"Scale\" { a: u8 }\nAssign as \"Assign\" { a: u8 }").unwrap();
    let text = layouts.cuda_assertions(&sources(&[("kernels/b.cuh", SCALE)])).unwrap();
    has(&text, "::Scale");
    assert!(!text.contains("Assign"), "{text}");
}

#[test]
fn structs_in_the_folder_of_a_feature_need_it() {
    let layouts = read("Scale as \"Scale\" { a: u8 }\nAssign as \"Assign\" { a: u8 }").unwrap();
    for feature in ["papers", "bench"] {
        let kernels = sources(&[(&format!("kernels/{feature}/a.cu"), ASSIGN), ("kernels/step/b.cuh", SCALE)]);
        let text = layouts.rust_assertions(&kernels).unwrap();
        has(&text, &format!("#[cfg(feature = \"{feature}\")]\nconst _: () = {{\n    assert!(std::mem::offset_of!(Assign, a)"));
        assert_eq!(text.matches("cfg(").count(), 1);
    }
}

#[test]
fn without_declarations_nothing_is_asserted() {
    let layouts = Layouts::read(&[]).unwrap();
    assert_eq!(layouts.cuda_assertions(&sources(&[("kernels/a.cu", ASSIGN)])).unwrap(), "");
    assert!(layouts.rust_assertions(&sources(&[("kernels/a.cu", ASSIGN)])).unwrap().lines().all(|line| line.starts_with("//")));
}

#[test]
fn errors_say_what_is_wrong() {
    let kernels = sources(&[("kernels/a.cu", ASSIGN), ("kernels/b.cu", SCALE)]);
    for (lines, part) in [
        ("Scale as \"Scales\" { a: u8 }", "no file in kernels defines Scales"),
        ("Scale as \"Scale\" { a: usize }", "Scale.a: expected u8 to u64"),
        ("Scale as \"Scale\" { a: [u8; N] }", "expected a number, got N"),
        ("Scale as \"Scale\" { a u8 }", "expected :, got u8"),
        ("Scale as \"Scale\" { a: u8 b: u8 }", "expected a comma, got b"),
        ("Scale as \"Scale\" { a: u8", "expected a comma, got the end"),
        ("Scale as \"Scale\" { a: Scale }", "Scale contains itself"),
        ("Scale as \"Scale\" { a: u8 }\nScale as \"Assign\" { a: u8 }", "Scale is declared twice"),
        ("Scale<T> as \"Scale\" { a: T }", "Scale depends on T, but Scale is no template"),
    ] {
        let outcome = read(lines).and_then(|layouts| {
            layouts.cuda_assertions(&kernels)?;
            layouts.rust_assertions(&kernels)
        });
        let error = outcome.expect_err(lines);
        assert!(error.contains(part), "{lines}: expected {part:?} in {error:?}");
    }
}
