//! What it takes to say an option once: the macros that declare options and words, and the types that describe them.
//!
//! [`options!`] turns a list of options into a struct with defaults, builder methods, setters by name, checks, and a description
//! that the Python package is generated from. [`words!`] turns a list of words into an enum.

use std::collections::BTreeMap;

use crate::base::error::{KMeansError, Result};

/// The value of an option as it comes from elsewhere: from Python, from SQL, from a command line.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "python", derive(serde::Deserialize), serde(untagged))]
pub enum Value {
    /// A word or an integer. Integers are texts, so that they may have any size.
    Text(String),
    Number(f64),
    /// Numbers by name.
    Factors(BTreeMap<String, f64>),
    /// Numbers in order.
    Numbers(Vec<f64>),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<i128> for Value {
    fn from(integer: i128) -> Self {
        Self::Text(integer.to_string())
    }
}

/// The numbers that an option takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numbers {
    Integers,
    Floats,
}

/// The values that an option takes, as another language sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    pub words: &'static [&'static str],
    pub numbers: Option<Numbers>,
    /// Whether an option may be without a value.
    pub none: bool,
    /// Values that are more than words and numbers: what an error calls them, and the name of the whole type in
    /// `python/polars_kmeans/_typing.py`.
    pub others: Option<(&'static str, &'static str)>,
}

impl Form {
    /// No values at all. Other forms start from this one.
    pub(crate) const NOTHING: Self = Self { words: &[], numbers: None, none: false, others: None };

    /// What an error says that it expected.
    pub(crate) fn expected(&self) -> String {
        let quoted = self.words.iter().map(|word| format!("{word:?}"));
        let numbers = self.numbers.map(|numbers| if numbers == Numbers::Integers { "an integer" } else { "a number" });
        let unquoted = numbers.into_iter().chain(self.others.map(|(what, _)| what));
        let mut all: Vec<String> = quoted.chain(unquoted.map(str::to_owned)).collect();
        let last = all.pop().unwrap_or_default();
        if all.is_empty() { last } else { format!("{} or {last}", all.join(", ")) }
    }
}

/// A question for the value of one option.
pub struct OptionQuery<'v> {
    pub(crate) option: &'static str,
    /// What the option's own declaration says that it expects, if it says so.
    pub(crate) expected: Option<&'static str>,
    pub(crate) value: Option<&'v Value>,
}

impl OptionQuery<'_> {
    /// The text of the value, if it is one.
    pub(crate) fn text(&self) -> Option<&str> {
        match self.value {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// The error for a value that is no `T`.
    pub(crate) fn refusal<T: OptionValue>(&self) -> KMeansError {
        let got = match self.value {
            None => "none".into(),
            Some(Value::Number(number)) => number.to_string(),
            Some(Value::Factors(factors)) => format!("{factors:?}"),
            Some(Value::Numbers(numbers)) => format!("{numbers:?}"),
            Some(Value::Text(text)) if text.parse::<i128>().is_ok() => text.clone(),
            Some(Value::Text(text)) => format!("{text:?}"),
        };
        self.refuse::<T>(got)
    }

    /// The error for a `T` outside the option's domain.
    fn refuse<T: OptionValue>(&self, got: String) -> KMeansError {
        let expected = self.expected.map_or_else(|| T::FORM.expected(), str::to_owned);
        KMeansError::InvalidOption { option: self.option, expected, got }
    }
}

/// A type that values of options have.
pub trait OptionValue: Sized {
    /// Its values, as another language sees them.
    const FORM: Form;

    /// The value that was given.
    ///
    /// # Errors
    /// [`KMeansError::InvalidOption`] with what was expected and what was got.
    fn read(asked: &OptionQuery<'_>) -> Result<Self>;

    /// The value in an error.
    fn shown(&self) -> String;

    /// The value as Python writes it, for a default.
    fn in_python(&self) -> String {
        match self.shown() {
            word if Self::FORM.words.contains(&&word[..]) => format!("{word:?}"),
            none if Self::FORM.none && none == "none" => "None".into(),
            other => other,
        }
    }
}

/// Refuses a value outside the option's domain.
pub(crate) fn check<T: OptionValue>(
    option: &'static str,
    expected: Option<&'static str>,
    valid: Option<fn(&T) -> bool>,
    value: &T,
) -> Result<()> {
    if valid.is_some_and(|valid| !valid(value)) {
        return Err(OptionQuery { option, expected, value: None }.refuse::<T>(value.shown()));
    }
    Ok(())
}

/// One option, as another language sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct OptionInfo {
    pub name: &'static str,
    /// What it means: paragraphs, of which the first can stand alone.
    pub doc: Vec<String>,
    pub form: Form,
    /// The default, as Python writes it.
    pub default: String,
    /// Whether only Rust has it.
    pub rust_only: bool,
}

impl OptionInfo {
    pub(crate) fn new<T: OptionValue>(name: &'static str, lines: &[&str], default: &T, rust_only: bool) -> Self {
        let paragraphs = lines.split(|line| line.trim().is_empty());
        let doc = paragraphs.map(|lines| lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")).collect();
        Self { name, doc, form: T::FORM, default: default.in_python(), rust_only }
    }

    /// The type of its values in Python.
    pub fn python_type(&self) -> String {
        let Form { words, numbers, none, others } = self.form;
        if let Some((_, name)) = others {
            return name.into();
        }
        let numbers = numbers.map(|numbers| if numbers == Numbers::Integers { "int" } else { "float" }.to_owned());
        let quoted = words.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(", ");
        let words = (!words.is_empty()).then(|| format!("Literal[{quoted}]"));
        let none = none.then(|| "None".to_owned());
        numbers.into_iter().chain(words).chain(none).collect::<Vec<_>>().join(" | ")
    }
}

/// The first of no or one values.
pub(crate) const fn maybe<T: Copy>(values: &[T]) -> Option<T> {
    if let [value] = values { Some(*value) } else { None }
}

/// Declares a group of options. An option is
///
/// ```text
/// /// What it means.
/// name: Type = default, "what an error says that it expected" if |value| is_valid(*value), only rust;
/// ```
///
/// where all after the default may be left out. `only rust` leaves the option out of Python. `for KMeans.field` makes a builder
/// method of every option, for the group in that field.
macro_rules! options {
    ($(#[$about:meta])* pub struct $group:ident for $estimator:ident.$field:ident { $($body:tt)* }) => {
        $crate::base::params::declare::options! { $(#[$about])* pub struct $group { $($body)* } }
        $crate::base::params::declare::options! { @builders $estimator $field $($body)* }
    };
    (@builders $estimator:ident $field:ident $(
        $(#[doc = $doc:literal])*
        $name:ident: $type:ty = $default:expr $(, $expected:literal $(if $valid:expr)?)? $(, only $rust:ident)?;
    )*) => {
        impl $estimator {
            $(
                $(#[doc = $doc])*
                ///
                #[doc = concat!("Default: `", stringify!($default), "`.")]
                pub fn $name(mut self, $name: $type) -> Self {
                    self.$field.$name = $name;
                    self
                }
            )*
        }
    };
    ($(#[$about:meta])* pub struct $group:ident { $(
        $(#[doc = $doc:literal])*
        $name:ident: $type:ty = $default:expr $(, $expected:literal $(if $valid:expr)?)? $(, only $rust:ident)?;
    )* }) => {
        $(#[$about])*
        pub struct $group {
            $($(#[doc = $doc])* pub $name: $type,)*
        }

        impl Default for $group {
            fn default() -> Self {
                Self { $($name: $default,)* }
            }
        }

        impl $group {
            /// Describes the options.
            pub(crate) fn describe() -> Vec<$crate::base::params::declare::OptionInfo> {
                let group = Self::default();
                vec![$($crate::base::params::declare::OptionInfo::new(
                    stringify!($name),
                    &[$($doc),*],
                    &group.$name,
                    !<[&str]>::is_empty(&[$(stringify!($rust))?]),
                )),*]
            }

            /// Sets the option of this name. False if this group has no such option.
            pub(crate) fn set(
                &mut self,
                option: &str,
                value: Option<&$crate::base::params::declare::Value>,
            ) -> $crate::base::error::Result<bool> {
                use $crate::base::params::declare::{OptionQuery, OptionValue, maybe};
                match option {
                    $(stringify!($name) => {
                        let asked = OptionQuery { option: stringify!($name), expected: maybe(&[$($expected)?]), value };
                        self.$name = OptionValue::read(&asked)?;
                    })*
                    _ => return Ok(false),
                }
                Ok(true)
            }

            /// Refuses values outside their domains.
            pub(crate) fn check(&self) -> $crate::base::error::Result<()> {
                use $crate::base::params::declare::{check, maybe};
                $({
                    let valid: &[fn(&$type) -> bool] = &[$($($valid)?)?];
                    check(stringify!($name), maybe(&[$($expected)?]), maybe(valid), &self.$name)?;
                })*
                Ok(())
            }
        }
    };
}
pub(crate) use options;

/// Declares an enum of words for the option `$option`.
macro_rules! words {
    ($(#[$about:meta])* pub enum $type:ident($option:literal) { $($(#[$doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub enum $type {
            $($(#[$doc])* $variant,)*
        }

        impl $type {
            /// The words, in order.
            pub const WORDS: &[&str] = &[$($word),*];

            /// The word for this value.
            pub fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::base::error::KMeansError;
            fn from_str(word: &str) -> $crate::base::error::Result<Self> {
                use $crate::base::params::declare::{OptionQuery, OptionValue};
                <Self as OptionValue>::read(&OptionQuery { option: $option, expected: None, value: Some(&word.into()) })
            }
        }

        impl $crate::base::params::declare::OptionValue for $type {
            const FORM: $crate::base::params::declare::Form =
                $crate::base::params::declare::Form { words: Self::WORDS, ..$crate::base::params::declare::Form::NOTHING };

            fn read(asked: &$crate::base::params::declare::OptionQuery<'_>) -> $crate::base::error::Result<Self> {
                match asked.text() {
                    $(Some($word) => Ok(Self::$variant),)*
                    _ => Err(asked.refusal::<Self>()),
                }
            }

            fn shown(&self) -> String {
                self.word().into()
            }
        }
    };
}
pub(crate) use words;

macro_rules! integers {
    ($($type:ty)*) => {
        $(impl OptionValue for $type {
            const FORM: Form = Form { numbers: Some(Numbers::Integers), ..Form::NOTHING };

            fn read(asked: &OptionQuery<'_>) -> Result<Self> {
                asked.text().and_then(|text| text.parse().ok()).ok_or_else(|| asked.refusal::<Self>())
            }

            fn shown(&self) -> String {
                self.to_string()
            }
        })*
    };
}
integers!(u32 u64 usize);

impl OptionValue for f64 {
    const FORM: Form = Form { numbers: Some(Numbers::Floats), ..Form::NOTHING };

    fn read(asked: &OptionQuery<'_>) -> Result<Self> {
        match asked.value {
            Some(Value::Number(number)) => Ok(*number),
            Some(Value::Text(text)) => text.parse().map_err(|_| asked.refusal::<Self>()),
            _ => Err(asked.refusal::<Self>()),
        }
    }

    fn shown(&self) -> String {
        self.to_string()
    }

    fn in_python(&self) -> String {
        format!("{self:?}")
    }
}

impl OptionValue for bool {
    const FORM: Form = Form { others: Some(("True or False", "bool")), ..Form::NOTHING };

    fn read(asked: &OptionQuery<'_>) -> Result<Self> {
        match asked.text() {
            Some("True" | "true") => Ok(true),
            Some("False" | "false") => Ok(false),
            _ => Err(asked.refusal::<Self>()),
        }
    }

    fn shown(&self) -> String {
        if *self { "True" } else { "False" }.into()
    }
}

/// A number that may be left out. One that is too large becomes the largest.
impl OptionValue for Option<u64> {
    const FORM: Form = Form { none: true, ..u64::FORM };

    fn read(asked: &OptionQuery<'_>) -> Result<Self> {
        let Some(_) = asked.value else { return Ok(None) };
        let number = asked.text().and_then(|text| text.parse::<u128>().ok()).ok_or_else(|| asked.refusal::<Self>())?;
        Ok(Some(u64::try_from(number).unwrap_or(u64::MAX)))
    }

    fn shown(&self) -> String {
        self.map_or_else(|| "none".into(), |number| number.to_string())
    }
}
