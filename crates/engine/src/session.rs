//! Sessions of the web pages, each of one token.

use crate::Engine;
use model::{Failure, Timestamp, TokenId};
use store::Lane;
use store::token::Token;

impl Engine {
    pub async fn open_session(&self, secret: String, token: TokenId, until: Timestamp) -> Result<(), Failure> {
        let open = move |tx: &mut store::Tx| store::session::open(tx, &secret, token, until);
        self.store.write(Lane::Normal, "session.open", open).await
    }

    /// The token of a session that is good now, and when the session ends.
    pub async fn check_session(&self, secret: &str) -> Result<(Token, Timestamp), Failure> {
        let secret = secret.to_owned();
        self.store.read_inline("session.check", move |tx| store::session::check(tx, &secret)).await
    }

    /// The token, if it is valid now.
    pub async fn good_token(&self, id: TokenId) -> Result<Option<Token>, Failure> {
        self.store.read_inline("token.good", move |tx| store::token::find_good(tx, id)).await
    }

    pub async fn end_session(&self, secret: &str) -> Result<(), Failure> {
        let secret = secret.to_owned();
        self.store.write(Lane::Normal, "session.end", move |tx| store::session::end(tx, &secret)).await
    }
}
