//! A home with many open runs: filled once by the real engine, then copied for each benchmark that needs it.

use super::plane::Home;
use crate::complaint::{Complaint, Done};
use futures_util::future::try_join_all;
use std::cell::Cell;
use testkit::bare;
use testkit::rehearsal::{Database, Rehearsal};
use tokio::sync::OnceCell;

/// Submissions under way at once while it is filled.
const HANDS: usize = 64;
/// What a home is known by.
const FILES: &[&str] = &["installation.json", "remuda-logs.db"];

#[derive(Default)]
pub struct Crowd(OnceCell<Home>);

impl Crowd {
    /// A home of its own with `count` open runs, all but one waiting.
    pub async fn home(&self, count: usize) -> Done<Home> {
        let full = self.0.get_or_try_init(|| filled(count)).await?;
        let home = Home::new()?;
        for name in FILES {
            let from = full.path().join(name);
            std::fs::copy(&from, home.path().join(name)).map_err(|error| Complaint::file("copy", &from, &error))?;
        }
        let from = full.path().join("copy.db");
        std::fs::copy(&from, home.database()).map_err(|error| Complaint::file("copy", &from, &error))?;
        Ok(home)
    }
}

pub async fn filled(count: usize) -> Done<Home> {
    eprintln!("repl: {count} runs are submitted first");
    let home = Home::new()?;
    let rehearsal = Rehearsal::open(home.path(), Database::File(home.database()), false).await?;
    let next = Cell::new(0);
    let one = || async {
        while next.get() < count {
            next.set(next.get() + 1);
            rehearsal.submit(next.get(), true).await?;
        }
        Done::Ok(())
    };
    try_join_all((0..HANDS).map(|_| one())).await?;
    bare::copy(&home.database(), &home.path().join("copy.db"))?;
    Ok(home)
}
