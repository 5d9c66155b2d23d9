//! Writes the Rust side of the kernels' arguments. The structs of `kernels/` are their only declaration.
//!
//! ```text
//! for each kernels/FOLDER/NAME.cu and its headers
//!     expand its macros                    the names of its kernels, and the struct that each takes
//!     follow the fields of this struct     the structs in it, and those that its pointers lead to
//! OUT_DIR/arguments.rs                     these structs in Rust, and a typed entry for each kernel
//! assertions for nvcc                      the sizes and offsets of these structs
//! ```
//! A struct that lies in device memory, because a pointer leads to it, keeps its name: `Control`. All others exist only in the
//! parameters of kernels: `Rows` is `RowsArgument` in Rust. A pointer to numbers, or to structs without a template, is an `At` of
//! them. Any other pointer is a `u64`, such as one to values of the rows' type. The threads of a block are those of the kernel's
//! launch bounds. Sizes and offsets follow from the rules of `repr(C)`, and both compilers check them. So a field that is misread
//! here does not compile.

use crate::Result;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Texts of sources and headers.
pub type Texts = BTreeMap<PathBuf, String>;

/// Features that have kernels of their own, in a folder of that name.
pub const FEATURES: [&str; 2] = ["papers", "bench"];

/// The types of rows: the names in CUDA and in Rust, and the bytes of a value.
const VALUES: [(&str, &str, usize); 2] = [("float", "f32", 4), ("double", "f64", 8)];

/// All other numbers in structs, likewise.
const NUMBERS: [(&str, &str, usize); 8] = [
    ("u8", "u8", 1),
    ("u16", "u16", 2),
    ("u32", "u32", 4),
    ("int", "i32", 4),
    ("u64", "u64", 8),
    ("i64", "i64", 8),
    VALUES[0],
    VALUES[1],
];

#[derive(Default)]
pub struct Arguments {
    structs: BTreeMap<String, Struct>,
    /// By the names of their functions in Rust.
    entries: BTreeMap<String, Entry>,
}

#[derive(Default)]
struct Struct {
    file: PathBuf,
    /// The comment before it.
    docs: String,
    template: bool,
    /// Whether it holds a `T`. It may be a template because of pointers alone.
    generic: bool,
    /// Whether a pointer leads to it, or to a struct that it is in.
    in_memory: bool,
    fields: Vec<Field>,
    /// For each type of rows.
    layouts: [Layout; 2],
}

struct Field {
    name: String,
    docs: String,
    kind: Kind,
    /// The length of an array.
    count: Option<usize>,
}

enum Kind {
    Number(&'static str, usize),
    /// To values of this type. None: to values of the rows' type, or to structs with a template.
    Pointer(Option<String>),
    /// `T`.
    Value,
    Struct(String),
}

#[derive(Default)]
struct Layout {
    offsets: Vec<usize>,
    /// Where the last field ends.
    end: usize,
    align: usize,
}

impl Layout {
    fn size(&self) -> usize {
        self.end.next_multiple_of(self.align.max(1))
    }
}

/// All kernels whose names begin alike.
struct Entry {
    file: PathBuf,
    argument: String,
    /// Whether the names say the type of the rows: `_f32`, `_f64` or `_f16`.
    typed: bool,
    kernels: Vec<String>,
    /// The threads of a block. None if they are not one number, for all of the kernels.
    threads: Option<usize>,
}

impl Arguments {
    /// Reads modules. Each is a source, and the texts of it and its headers.
    pub fn read(modules: &[(PathBuf, Texts)]) -> Result<Self> {
        let mut all = Self::default();
        for (file, texts) in modules {
            let mut add = || kernels(&texts[file])?.into_iter().try_for_each(|kernel| all.add_kernel(file, kernel, texts));
            add().map_err(|error| format!("{}: {error}", file.display()))?;
        }
        Ok(all)
    }

    fn add_kernel(&mut self, file: &Path, kernel: Kernel, texts: &Texts) -> Result<()> {
        let Kernel { name, argument, value, bound } = kernel;
        let threads = bound.and_then(|bound| number(&bound, texts));
        if !self.add_struct(&argument, texts, false)? {
            return Err(format!("{name} takes {argument}, which neither this file nor a header defines"));
        }
        // The first part with a digit begins the variant: `assign_tiled_f32_k128`, `assign_yinyang_k64`.
        let parts: Vec<&str> = name.split('_').collect();
        let end = parts.iter().position(|part| part.contains(|c: char| c.is_ascii_digit())).unwrap_or(parts.len());
        let stem = parts[..end].join("_");
        let of_type = match parts.get(end) {
            Some(&"f32" | &"f16") => "float",
            Some(&"f64") => "double",
            _ => "",
        };
        if self.structs[&argument].generic && of_type != value {
            return Err(format!("{name} takes {argument}<{value}>: expected float and _f32 or _f16, or double and _f64"));
        }
        let typed = !of_type.is_empty();
        let new = || Entry { file: file.into(), argument: argument.clone(), typed, kernels: Vec::new(), threads };
        let entry = self.entries.entry(stem.clone()).or_insert_with(new);
        if entry.file != file || entry.argument != argument || entry.typed != typed {
            let (other, at) = (&entry.kernels[0], entry.file.display());
            return Err(format!("{name} and {other} of {at} are both {stem} in Rust: expected one file, one struct, one kind"));
        }
        entry.kernels.push(name);
        entry.threads = entry.threads.filter(|all| Some(*all) == threads);
        Ok(())
    }

    /// Adds the struct of this name, and those that it leads to. Returns whether there is one.
    fn add_struct(&mut self, name: &str, texts: &Texts, in_memory: bool) -> Result<bool> {
        let found = texts.iter().find_map(|(file, text)| Some((file, definition(name, text)?)));
        let Some((file, Definition { docs, template, body })) = found else { return Ok(false) };
        match self.structs.get(name) {
            Some(known) if known.file != *file => {
                return Err(format!("{} and {} both define {name}", known.file.display(), file.display()));
            }
            Some(known) if known.in_memory || !in_memory => return Ok(true),
            _ => {}
        }
        // The struct is known before its fields are read, because their pointers may lead to it.
        self.structs.insert(name.into(), Struct { file: file.clone(), in_memory, ..Struct::default() });
        let mut one = Struct { file: file.clone(), docs, template, in_memory, ..Struct::default() };
        for (declared, docs) in declarations(&body) {
            let added = self.add_fields(&mut one, declared, docs, texts);
            added.map_err(|error| format!("{}: {name}: {error}", file.display()))?;
        }
        one.in_memory |= self.structs[name].in_memory;
        self.structs.insert(name.into(), one);
        Ok(true)
    }

    /// Adds the fields of one declaration: `const u64* others[MOST_GPUS];` or `int k, d;`.
    fn add_fields(&mut self, one: &mut Struct, declared: &str, docs: &str, texts: &Texts) -> Result<()> {
        let unclear = || format!("expected a number, a pointer or a struct, such as `u32 n, k;`, got `{declared}`");
        let code = declared.strip_suffix(';').ok_or_else(unclear)?;
        let (base, rest) = split_word(code.strip_prefix("const ").unwrap_or(code));
        let (parameters, rest) = match rest.strip_prefix('<') {
            Some(rest) => rest.split_once('>').ok_or_else(unclear)?,
            None => ("", rest),
        };
        let (is_pointer, names) = (rest.starts_with('*'), rest.trim_start_matches('*').split(','));
        if is_pointer && names.clone().count() > 1 {
            return Err(format!("expected one pointer in a line, got `{declared}`"));
        }
        for name in names.map(str::trim) {
            let (name, count) = match name.strip_suffix(']').and_then(|name| name.split_once('[')) {
                Some((name, count)) => (name, Some(number(count, texts).ok_or_else(unclear)?)),
                None => (name, None),
            };
            if name.is_empty() || !name.chars().all(in_word) {
                return Err(unclear());
            }
            let kind = if is_pointer {
                let to = match NUMBERS.iter().find(|(cuda, ..)| *cuda == base) {
                    Some((_, rust, _)) => Some((*rust).into()),
                    None if self.add_struct(base, texts, true)? && !self.structs[base].template => Some(base.into()),
                    None => None,
                };
                Kind::Pointer(to)
            } else if let Some(&(_, rust, bytes)) = NUMBERS.iter().find(|(cuda, ..)| *cuda == base) {
                Kind::Number(rust, bytes)
            } else if base == "T" && one.template {
                Kind::Value
            } else if self.add_struct(base, texts, one.in_memory)? {
                Kind::Struct(base.into())
            } else {
                return Err(unclear());
            };
            if let Kind::Struct(inner) = &kind
                && self.structs[inner].generic
            {
                if parameters.split(',').next() != Some("T") {
                    return Err(format!("expected {base}<T> or {base}<T, S>, got `{declared}`"));
                }
                one.generic = true;
            }
            one.generic |= matches!(kind, Kind::Value);
            let field = Field { name: name.into(), docs: docs.into(), kind, count };
            for (value, layout) in one.layouts.iter_mut().enumerate() {
                let (size, align) = self.size(&field, value);
                let offset = layout.end.next_multiple_of(align);
                layout.offsets.push(offset);
                layout.end = offset + size;
                layout.align = layout.align.max(align);
            }
            one.fields.push(field);
        }
        Ok(())
    }

    /// The size and the alignment of a field, for a type of rows.
    fn size(&self, field: &Field, value: usize) -> (usize, usize) {
        let (size, align) = match &field.kind {
            Kind::Number(_, bytes) => (*bytes, *bytes),
            Kind::Pointer(_) => (8, 8),
            Kind::Value => (VALUES[value].2, VALUES[value].2),
            Kind::Struct(name) => {
                let layout = &self.structs[name].layouts[value];
                (layout.size(), layout.align.max(1))
            }
        };
        (size * field.count.unwrap_or(1), align)
    }

    /// The assertions for one module, which has these sources.
    pub fn cuda_assertions(&self, module: &Texts) -> String {
        let mut text = String::new();
        for (name, one) in self.structs.iter().filter(|(_, one)| module.contains_key(&one.file)) {
            for ((value, ..), layout) in VALUES.iter().zip(&one.layouts).take(if one.template { 2 } else { 1 }) {
                let name = if one.template { format!("::{name}<{value}>") } else { format!("::{name}") };
                for (field, offset) in one.fields.iter().zip(&layout.offsets) {
                    let field = &field.name;
                    let message = format!("{name}.{field} is at byte {offset} in Rust");
                    text += &format!("static_assert(offsetof({name}, {field}) == {offset}, \"{message}\");\n");
                }
                let size = layout.size();
                text += &format!("static_assert(sizeof({name}) == {size}, \"{name} has {size} bytes in Rust\");\n");
            }
        }
        text
    }

    /// The text of `arguments.rs`.
    pub fn rust(&self) -> Result<String> {
        let mut text = String::from("// Written by build.rs from the structs and the kernels in kernels/.\n");
        for (name, one) in &self.structs {
            text += &self.rust_struct(name, one)?;
        }
        for (stem, Entry { file, argument, typed, kernels, threads }) in &self.entries {
            let (condition, argument) = (condition(file), self.rust_name(argument, "T"));
            let (parameter, made) = if *typed { ("<T: Float>", "typed::<T>") } else { ("", "untyped") };
            text += &format!("\n/// `{}`.\n{condition}", kernels.join("`, `"));
            text += &format!("pub const fn {stem}{parameter}() -> Entry<{argument}> {{\n");
            text += &format!("    Entry::{made}({:?}, {stem:?}, {})\n}}\n", module_of(file), threads.unwrap_or(0));
        }
        Ok(text)
    }

    fn rust_struct(&self, name: &str, one: &Struct) -> Result<String> {
        let (condition, rust) = (condition(&one.file), self.rust_name(name, "T"));
        let at = one.file.to_string_lossy().replace('\\', "/");
        let (mut fields, mut zeros) = (String::new(), String::new());
        for Field { name, docs, kind, count } in &one.fields {
            let (kind, zero) = match kind {
                Kind::Number(rust, _) => (rust.to_string(), if rust.starts_with('f') { "0.0".into() } else { "0".into() }),
                Kind::Pointer(Some(to)) => (format!("At<{to}>"), "At::NULL".into()),
                Kind::Pointer(None) => ("u64".into(), "0".into()),
                Kind::Value => ("T".into(), "T::default()".into()),
                Kind::Struct(name) if self.structs[name].generic => {
                    (self.rust_name(name, "T"), format!("<{}>::zero()", self.rust_name(name, "T")))
                }
                Kind::Struct(name) => (self.rust_name(name, "T"), format!("{}::ZERO", self.rust_name(name, "T"))),
            };
            let array = |one: String| count.map_or(one.clone(), |count| format!("[{one}; {count}]"));
            let docs = if docs.is_empty() { String::new() } else { format!("    ///{docs}\n") };
            fields += &format!("{docs}    pub {name}: {},\n", array(kind));
            zeros += &format!("        {name}: {},\n", array(zero));
        }
        let mut text = format!("\n{}/// `{name}` of `{at}`.\n{condition}#[repr(C)]\n", one.docs);
        text += &format!("#[derive(Debug, Clone, Copy)]\npub struct {rust} {{\n{fields}}}\n");
        let bound = if one.generic { "<T: Float>" } else { "" };
        if self.entries.values().any(|entry| entry.argument == name) {
            text += "// SAFETY: the struct has the layout of the one that kernels take. Both compilers assert it.\n";
            text += &format!("{condition}unsafe impl{bound} Argument for {rust} {{}}\n");
        }
        if one.in_memory {
            for (value, layout) in one.layouts.iter().enumerate() {
                if one.fields.iter().map(|field| self.size(field, value).0).sum::<usize>() != layout.size() {
                    return Err(format!("{at}: {name} lies in device memory: expected fields in the place of its padding"));
                }
            }
            text += "// SAFETY: all fields are numbers or addresses on the device, and there is no padding between them.\n";
            text += &format!("{condition}unsafe impl{bound} Plain for {rust} {{}}\n");
        }
        let made = if one.generic {
            format!("pub fn zero() -> Self {{\n        Self {{\n{zeros}    }}}}\n}}\n")
        } else {
            format!("pub const ZERO: Self = Self {{\n{zeros}    }};\n}}\n")
        };
        text += &format!("{condition}#[allow(dead_code, reason = \"few need it\")]\nimpl{bound} {rust} {{\n    {made}");
        text += &format!("{condition}const _: () = {{\n");
        for ((_, value, _), layout) in VALUES.iter().zip(&one.layouts).take(if one.generic { 2 } else { 1 }) {
            let rust = self.rust_name(name, value);
            for (field, offset) in one.fields.iter().zip(&layout.offsets) {
                text += &format!("    assert!(std::mem::offset_of!({rust}, {}) == {offset});\n", field.name);
            }
            text += &format!("    assert!(size_of::<{rust}>() == {});\n", layout.size());
        }
        text += "};\n";
        Ok(text)
    }

    /// The name in Rust of a struct for rows of type `value`.
    fn rust_name(&self, name: &str, value: &str) -> String {
        let one = &self.structs[name];
        let end = if one.in_memory { "" } else { "Argument" };
        if one.generic { format!("{name}{end}<{value}>") } else { format!("{name}{end}") }
    }
}

/// What comes from a file in the folder of a feature needs that feature.
fn condition(file: &Path) -> String {
    let feature = FEATURES.iter().find(|feature| file.starts_with(format!("kernels/{feature}")));
    feature.map_or(String::new(), |feature| format!("#[cfg(feature = \"{feature}\")]\n"))
}

fn module_of(file: &Path) -> &str {
    file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default()
}

// ------------------------------------------------------------------------------------------------------------ CUDA's text

fn in_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The word that a text begins with, which may be empty, and the rest.
fn split_word(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c| !in_word(c)).unwrap_or(text.len()))
}

/// A struct as text.
struct Definition<'a> {
    docs: String,
    template: bool,
    body: Vec<&'a str>,
}

fn definition<'a>(name: &str, text: &'a str) -> Option<Definition<'a>> {
    let lines: Vec<&str> = text.lines().collect();
    let begin = format!("struct {name} {{");
    let is_begin =
        |line: &&str| line.strip_suffix(&begin).is_some_and(|before| before.is_empty() || before.starts_with("template <"));
    let at = lines.iter().position(is_begin)?;
    let mut docs: Vec<String> =
        lines[..at].iter().rev().map_while(|line| Some(format!("///{}\n", line.strip_prefix("//")?))).collect();
    docs.reverse();
    if !docs.is_empty() {
        docs.push("///\n".into());
    }
    let body = lines[at + 1..].iter().take_while(|line| **line != "};").copied().collect();
    Some(Definition { docs: docs.concat(), template: lines[at] != begin, body })
}

/// The declarations among the lines of a struct, and their comments. Functions are left out.
fn declarations<'a>(body: &[&'a str]) -> Vec<(&'a str, &'a str)> {
    let mut found = Vec::new();
    let mut depth = 0;
    for line in body {
        let (code, docs) = line.split_once("//").unwrap_or((line, ""));
        let code = code.trim();
        if depth > 0 || code.starts_with("__device__") {
            depth += code.matches('{').count() as i32 - code.matches('}').count() as i32;
        } else if !code.is_empty() {
            found.push((code, docs));
        }
    }
    found
}

/// The length of an array: `16`, `MOST_GPUS`, `2 * MOST_TRIALS`.
fn number(text: &str, texts: &Texts) -> Option<usize> {
    let defined = |name: &str| {
        let value = |line: &str| {
            line.strip_prefix("#define ")?.strip_prefix(name)?.strip_prefix(' ')?.split(' ').next()?.parse::<usize>().ok()
        };
        texts.values().flat_map(|text| text.lines()).find_map(value)
    };
    text.split('*').map(|factor| factor.trim().parse().ok().or_else(|| defined(factor.trim()))).product()
}

/// A kernel, the struct that it takes, the first parameter of this template, and the threads of its launch bounds.
#[derive(Debug)]
struct Kernel {
    name: String,
    argument: String,
    value: String,
    bound: Option<String>,
}

/// The parameters and the text of each macro.
type Macros<'a> = BTreeMap<&'a str, (Vec<&'a str>, &'a str)>;

/// The kernels of a source. Macros declare most of them.
fn kernels(text: &str) -> Result<Vec<Kernel>> {
    let joined = text.replace('\r', "").replace("\\\n", " ");
    let mut macros = Macros::new();
    let mut found = Vec::new();
    for line in joined.lines() {
        if let Some((name, rest)) = line.strip_prefix("#define ").map(split_word) {
            if let Some((parameters, text)) = rest.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
                macros.insert(name, (parameters.split(',').map(str::trim).collect(), text));
            }
        } else if line.starts_with("extern \"C\" __global__") || macros.contains_key(split_word(line).0) {
            for declared in expand(line, &macros).split("__global__").skip(1) {
                found.push(kernel(declared).ok_or_else(|| {
                    let got = declared.split('{').next().unwrap_or_default();
                    format!("expected a kernel with the parameter `const __grid_constant__ STRUCT a`, got `{}`", got.trim())
                })?);
            }
        } else if line.split("//").next().is_some_and(|code| code.contains("__global__")) {
            return Err(format!("expected a line that begins with `extern \"C\" __global__`, got `{line}`"));
        }
    }
    Ok(found)
}

/// ` void __launch_bounds__(256, 2) name(const __grid_constant__ Assign<float, Half> a) ...`.
fn kernel(text: &str) -> Option<Kernel> {
    let text = text.strip_prefix(" void ")?;
    let bounds = text.strip_prefix("__launch_bounds__").and_then(parentheses);
    let (name, rest) = split_word(bounds.map_or(text, |(_, rest)| rest.trim_start()));
    let bound = bounds.and_then(|(bounds, _)| bounds.split(',').next()).map(str::to_owned);
    let (argument, rest) = split_word(parentheses(rest)?.0.strip_prefix("const __grid_constant__ ")?);
    let (parameters, rest) = rest.strip_prefix('<').map_or(Some(("", rest)), |rest| rest.split_once('>'))?;
    let value = split_word(parameters).0;
    let kernel = Kernel { name: name.into(), argument: argument.into(), value: value.into(), bound };
    rest.trim().chars().all(in_word).then_some(kernel)
}

/// What is in the parentheses that a text begins with, and what comes after them.
fn parentheses(text: &str) -> Option<(&str, &str)> {
    let inside = text.strip_prefix('(')?;
    let mut depth = 1;
    for (at, c) in inside.char_indices() {
        depth += i32::from(c == '(') - i32::from(c == ')');
        if depth == 0 {
            return Some((&inside[..at], &inside[at + 1..]));
        }
    }
    None
}

/// Replaces macros as the preprocessor does. Values of parameters hold no commas.
fn expand(mut text: &str, macros: &Macros) -> String {
    let mut out = String::new();
    while let Some(piece) = pieces(text).next() {
        text = &text[piece.len()..];
        let Some(((parameters, body), (values, after))) = macros.get(piece).zip(parentheses(text)) else {
            out += piece;
            continue;
        };
        let values: Vec<&str> = values.split(',').map(str::trim).collect();
        let value = |piece| parameters.iter().position(|name| *name == piece).and_then(|at| values.get(at).copied());
        let filled: String = pieces(body).map(|piece| value(piece).unwrap_or(piece)).collect();
        out += &expand(&filled.replace("##", ""), macros);
        text = after;
    }
    out
}

/// The words of a text, and each character between them.
fn pieces(mut text: &str) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        let length = split_word(text).0.len().max(text.chars().next()?.len_utf8());
        let (piece, rest) = text.split_at(length);
        text = rest;
        Some(piece)
    })
}
