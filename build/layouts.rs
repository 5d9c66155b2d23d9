//! The layouts of the kernels' argument structs, which Rust and CUDA declare separately. Files in `src/backend/cuda` declare them in
//! a form that is read here:
//!
//! ```text
//! arguments! {
//!     /// Doc lines.
//!     Settle as "Settle" { rows: Rows, next: Labels, k: i32, values: i32 }
//!     Assign<T> as "Assign" { rows: Rows, scale: T }
//! }
//! ```
//!
//! The first name is that in Rust, the name in quotes that of the struct in the kernels. Sizes and offsets follow from the rules of
//! `repr(C)`. Each kernel module is compiled with assertions that its structs have them, and the Rust side includes `layouts.rs`,
//! which asserts the same there. So a field that is moved, added or changed on one side only does not compile.

use crate::Result;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Texts of the kernels' sources and headers.
type Sources = BTreeMap<PathBuf, String>;

/// Features that have kernels of their own, in a folder of that name.
pub const FEATURES: [&str; 2] = ["papers", "bench"];

pub struct Layouts(Vec<Struct>);

/// One declaration.
struct Struct {
    /// Its name in Rust.
    name: String,
    /// Its name in the kernels.
    cuda: String,
    /// Whether it depends on the type of the rows, `T`.
    generic: bool,
    fields: Vec<(String, Type)>,
    /// The file that declares it.
    file: PathBuf,
}

enum Type {
    Number(usize),
    /// `T`.
    Value,
    Array(Box<Type>, usize),
    Struct(String),
}

/// Size, alignment, and the offset of each field.
struct Layout {
    size: usize,
    align: usize,
    offsets: Vec<usize>,
}

/// The types of rows: the names in Rust and in CUDA, and the bytes of a value.
const VALUES: [(&str, &str, usize); 2] = [("f32", "float", 4), ("f64", "double", 8)];

impl Layouts {
    /// The declarations in all of `files`.
    pub fn read(files: &[PathBuf]) -> Result<Self> {
        let mut structs: Vec<Struct> = Vec::new();
        for file in files {
            let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
            for block in blocks(&text) {
                let mut tokens = Tokens::of(&block, file);
                while tokens.peek().is_some() {
                    let declared = tokens.declaration()?;
                    if structs.iter().any(|other| other.name == declared.name) {
                        return Err(format!("{}: {} is declared twice", file.display(), declared.name));
                    }
                    structs.push(declared);
                }
            }
        }
        Ok(Self(structs))
    }

    /// The assertions for one module, which has these sources.
    pub fn cuda_assertions(&self, module: &Sources) -> Result<String> {
        let mut text = String::new();
        for one in &self.0 {
            let Some(template) = module.values().find_map(|source| template_of(source, &one.cuda)) else { continue };
            if one.generic && !template {
                return Err(format!("{}: {} depends on T, but {} is no template", one.file.display(), one.name, one.cuda));
            }
            for (_, value, bytes) in VALUES.iter().take(if template { 2 } else { 1 }) {
                let layout = self.layout(one, *bytes, 0)?;
                let name = if template { format!("::{}<{value}>", one.cuda) } else { format!("::{}", one.cuda) };
                for ((field, _), offset) in one.fields.iter().zip(&layout.offsets) {
                    let message = format!("{}.{field} is at byte {offset} in {}", one.name, one.file.display());
                    writeln!(text, "static_assert(offsetof({name}, {field}) == {offset}, \"{message}\");").unwrap();
                }
                let message = format!("{} has {} bytes in {}", one.name, layout.size, one.file.display());
                writeln!(text, "static_assert(sizeof({name}) == {}, \"{message}\");", layout.size).unwrap();
            }
        }
        Ok(text)
    }

    /// `layouts.rs`. A struct that only files in the folder of a feature define exists with that feature.
    pub fn rust_assertions(&self, kernels: &Sources) -> Result<String> {
        let mut text = String::from("// Written by build.rs: the layouts that the kernels expect.\n");
        for one in &self.0 {
            let homes: Vec<&PathBuf> =
                kernels.iter().filter(|(_, source)| template_of(source, &one.cuda).is_some()).map(|(file, _)| file).collect();
            if homes.is_empty() {
                return Err(format!(
                    "{}: no file in kernels defines {}, which {} stands for",
                    one.file.display(),
                    one.cuda,
                    one.name
                ));
            }
            for feature in
                FEATURES.iter().filter(|feature| homes.iter().all(|file| file.starts_with(format!("kernels/{feature}"))))
            {
                writeln!(text, "#[cfg(feature = \"{feature}\")]").unwrap();
            }
            text += "const _: () = {\n";
            for (value, _, bytes) in VALUES.iter().take(if one.generic { 2 } else { 1 }) {
                let layout = self.layout(one, *bytes, 0)?;
                let name = if one.generic { format!("{}<{value}>", one.name) } else { one.name.clone() };
                for ((field, _), offset) in one.fields.iter().zip(&layout.offsets) {
                    writeln!(
                        text,
                        "    assert!(std::mem::offset_of!({name}, {field}) == {offset}, \"{name}.{field} is not at byte {offset}\");"
                    )
                    .unwrap();
                }
                let size = layout.size;
                writeln!(text, "    assert!(std::mem::size_of::<{name}>() == {size}, \"{name} has not {size} bytes\");")
                    .unwrap();
            }
            text += "};\n";
        }
        Ok(text)
    }

    fn layout(&self, one: &Struct, value: usize, depth: usize) -> Result<Layout> {
        if depth > self.0.len() {
            return Err(format!("{}: {} contains itself", one.file.display(), one.name));
        }
        let (mut size, mut align, mut offsets) = (0usize, 1, Vec::new());
        for (field, kind) in &one.fields {
            let (bytes, alignment) = self.size(kind, value, depth, &format!("{}: {}.{field}", one.file.display(), one.name))?;
            size = size.next_multiple_of(alignment);
            offsets.push(size);
            size += bytes;
            align = align.max(alignment);
        }
        Ok(Layout { size: size.next_multiple_of(align), align, offsets })
    }

    /// The size and the alignment of a type. `at` says whose type it is.
    fn size(&self, kind: &Type, value: usize, depth: usize, at: &str) -> Result<(usize, usize)> {
        Ok(match kind {
            Type::Number(bytes) => (*bytes, *bytes),
            Type::Value => (value, value),
            Type::Array(element, count) => {
                let (bytes, alignment) = self.size(element, value, depth, at)?;
                (bytes * count, alignment)
            }
            Type::Struct(name) => {
                let one = self.0.iter().find(|one| one.name == *name).ok_or_else(|| {
                    format!("{at}: expected u8 to u64, i8 to i64, f32, f64, T, an array or a struct in arguments!, got {name}")
                })?;
                let Layout { size, align, .. } = self.layout(one, value, depth + 1)?;
                (size, align)
            }
        })
    }
}

/// The texts between a line `arguments! {` and the next line `}`.
fn blocks(text: &str) -> Vec<Vec<&str>> {
    let mut found: Vec<Vec<&str>> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        if line == "arguments! {" {
            found.push(Vec::new());
            inside = true;
        } else if line == "}" {
            inside = false;
        } else if inside {
            found.last_mut().expect("a block has begun").push(line.trim());
        }
    }
    found
}

/// Whether `source` defines struct `name`, and if so whether it is a template of the type of the rows.
fn template_of(source: &str, name: &str) -> Option<bool> {
    source.lines().find_map(|line| {
        let templates = ["template <typename T> ", "template <typename T, typename S = T> "];
        let rest = templates.iter().find_map(|start| line.strip_prefix(start));
        let (template, rest) = rest.map_or((false, line), |rest| (true, rest));
        let rest = rest.strip_prefix("struct ")?.strip_prefix(name)?;
        rest.trim_start().starts_with('{').then_some(template)
    })
}

/// The words and signs of a block. Comments and attributes are left out.
struct Tokens<'a> {
    rest: std::iter::Peekable<std::vec::IntoIter<&'a str>>,
    file: &'a Path,
}

impl<'a> Tokens<'a> {
    fn of(block: &[&'a str], file: &'a Path) -> Self {
        let mut tokens = Vec::new();
        for line in block.iter().filter(|line| !line.starts_with("#[")) {
            let mut line = line.split("//").next().unwrap_or_default();
            while let Some(first) = line.chars().next() {
                let word = line.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(line.len());
                let (token, rest) = line.split_at(if word > 0 { word } else { first.len_utf8() });
                line = rest;
                if !token.trim().is_empty() {
                    tokens.push(token);
                }
            }
        }
        Self { rest: tokens.into_iter().peekable(), file }
    }

    fn peek(&mut self) -> Option<&'a str> {
        self.rest.peek().copied()
    }

    fn unexpected<T>(&self, got: Option<&str>, expected: &str) -> Result<T> {
        Err(format!("{}: arguments!: expected {expected}, got {}", self.file.display(), got.unwrap_or("the end")))
    }

    fn need(&mut self, sign: &str) -> Result<()> {
        match self.rest.next() {
            Some(token) if token == sign => Ok(()),
            other => self.unexpected(other, sign),
        }
    }

    /// Whether the next token is `sign`. If so, it is taken.
    fn take(&mut self, sign: &str) -> bool {
        self.rest.next_if_eq(&sign).is_some()
    }

    fn word(&mut self) -> Result<String> {
        match self.rest.next() {
            Some(word) if word.starts_with(|c: char| c.is_alphabetic() || c == '_') => Ok(word.into()),
            other => self.unexpected(other, "a name"),
        }
    }

    /// `Name<T> as "Cuda" { field: type, ... }`.
    fn declaration(&mut self) -> Result<Struct> {
        let name = self.word()?;
        let generic = self.parameter()?;
        self.need("as")?;
        self.need("\"")?;
        let cuda = self.word()?;
        self.need("\"")?;
        self.need("{")?;
        let mut fields = Vec::new();
        while !self.take("}") {
            let field = self.word()?;
            self.need(":")?;
            fields.push((field, self.kind()?));
            if !self.take(",") && self.peek() != Some("}") {
                let got = self.peek();
                return self.unexpected(got, "a comma");
            }
        }
        Ok(Struct { name, cuda, generic, fields, file: self.file.into() })
    }

    /// Takes `<T>` if it is next.
    fn parameter(&mut self) -> Result<bool> {
        if !self.take("<") {
            return Ok(false);
        }
        self.need("T")?;
        self.need(">")?;
        Ok(true)
    }

    fn kind(&mut self) -> Result<Type> {
        if self.take("[") {
            let element = self.kind()?;
            self.need(";")?;
            let count = self.rest.next();
            let Some(count) = count.and_then(|count| count.parse().ok()) else { return self.unexpected(count, "a number") };
            self.need("]")?;
            return Ok(Type::Array(Box::new(element), count));
        }
        let name = self.word()?;
        Ok(match name.as_str() {
            "T" => Type::Value,
            "u8" | "i8" => Type::Number(1),
            "u16" | "i16" => Type::Number(2),
            "u32" | "i32" | "f32" => Type::Number(4),
            "u64" | "i64" | "f64" => Type::Number(8),
            _ => {
                self.parameter()?;
                Type::Struct(name)
            }
        })
    }
}
