//! Who asks for a change: an org, and the token of the person or program in words. Events of what was asked say it.

use model::OrgId;
use store::token::Token;

/// `by` is none where the control plane itself asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    pub org: OrgId,
    pub by: Option<String>,
}

impl Actor {
    /// A sentence such as "the token `ci` (tok_1) asked again".
    pub(crate) fn said(&self, did: &str) -> String {
        self.by.as_ref().map_or_else(|| did.to_owned(), |by| format!("{by} {did}"))
    }
}

impl From<OrgId> for Actor {
    fn from(org: OrgId) -> Actor {
        Actor { org, by: None }
    }
}

impl From<&Token> for Actor {
    fn from(token: &Token) -> Actor {
        Actor { org: token.org, by: Some(token.described()) }
    }
}
