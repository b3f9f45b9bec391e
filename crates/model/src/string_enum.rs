//! Enumerations that are stored, shown and compared as words. One macro, so that no spelling is written twice.

/// Declares a field-less enum whose variants have one stable spelling each (`as_str`, `FromStr`, serde, `ALL`).
#[macro_export]
macro_rules! string_enum {
    ($(#[$meta:meta])* $vis:vis enum $name:ident { $($(#[$vmeta:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, ::serde::Serialize, ::serde::Deserialize)]
        $vis enum $name { $($(#[$vmeta])* #[serde(rename = $text)] $variant),+ }

        impl $name {
            pub const ALL: &'static [$name] = &[$($name::$variant),+];
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text),+ }
            }
        }
        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result { f.pad(self.as_str()) }
        }
        impl ::std::str::FromStr for $name {
            type Err = $crate::string_enum::UnknownWord;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                $name::ALL.iter().copied().find(|w| w.as_str() == text).ok_or_else(|| $crate::string_enum::UnknownWord {
                    text: text.to_owned(),
                    known: $name::ALL.iter().map(|w| w.as_str()).collect(),
                })
            }
        }
    };
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is none of {}", known.join(", "))]
pub struct UnknownWord {
    pub text: String,
    pub known: Vec<&'static str>,
}
