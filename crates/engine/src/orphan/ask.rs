//! How a provider is asked what it lists: each call has a time limit, each list an end. Reads and writes no rows.

use crate::{Engine, Provider, TimerFuture};
use adapters::ListAsk;
use adapters::provider::ProviderFuture;
use model::orphan::Listed;
use model::time::{MINUTE, SECOND};
use model::{Trouble, TroubleKind};
use std::future::poll_fn;
use std::sync::Mutex;
use std::task::{Context, Poll};

/// An answer, or a page of a list, that does not come within this will not come.
const PAGE_MS: i64 = MINUTE;
/// Longer than the limits that providers have for making or ending a machine: 5 minutes for a program unless its settings say more. Only a
/// copy of the runner's binary by ssh may take as long.
const END_MS: i64 = 10 * MINUTE;
/// Names that begin with the name of one machine fill one page at most, unless the provider does not look at the prefix.
const MOST_NAMED_PAGES: i64 = 50;

/// What one call, or several together, may take.
pub(super) struct Limit {
    ms: i64,
    timer: TimerFuture,
    over: bool,
}

/// Where the next request begins that asks many, when the last one had no time for all of them: what hangs in front keeps none behind it
/// from ever being asked.
#[derive(Default)]
pub(crate) struct Turns {
    /// The provider and region that a scan did not come to.
    pub(super) scan: Mutex<Option<(String, String)>>,
    /// The name behind which an import did not come.
    pub(super) import: Mutex<String>,
}

/// Said of what a request had no time left to ask.
pub(super) const NO_TIME: &str = "there was no time left to ask its provider: ask again";

impl Limit {
    pub(super) async fn is_spent(&mut self) -> bool {
        poll_fn(|context| Poll::Ready(self.is_over(context))).await
    }

    fn is_over(&mut self, context: &mut Context<'_>) -> bool {
        // A timer that is over is not polled again.
        self.over = self.over || self.timer.as_mut().poll(context).is_ready();
        self.over
    }
}

/// What a provider lists under one name.
pub(super) struct Named {
    pub(super) listed: Vec<Listed>,
    /// A part of the provider that could not be asked, with the reason: what is wanted may be there.
    pub(super) incomplete: Option<String>,
}

impl Engine {
    pub(super) fn limit(&self, ms: i64) -> Limit {
        Limit { ms, timer: self.context.timer.after(ms), over: false }
    }

    /// What a provider answers to a question, if it does so in time.
    pub(crate) async fn in_time<T>(&self, asked: ProviderFuture<'_, T>) -> Result<T, Trouble> {
        answered(asked, &mut [&mut self.limit(PAGE_MS)]).await
    }

    /// The same for one of several questions that have a limit together.
    pub(super) async fn within<T>(&self, asked: ProviderFuture<'_, T>, whole: &mut Limit) -> Result<T, Trouble> {
        answered(asked, &mut [whole, &mut self.limit(PAGE_MS)]).await
    }

    /// The same for what makes, ends or deletes something.
    pub(crate) async fn acts_in_time<T>(&self, asked: ProviderFuture<'_, T>) -> Result<T, Trouble> {
        answered(asked, &mut [&mut self.limit(END_MS)]).await
    }

    /// What is wanted of that whose name begins so, on whichever page of the list it is.
    pub(super) async fn list_named(
        &self,
        provider: &dyn Provider,
        (region, name): (&str, &str),
        is_wanted: impl Fn(&Listed) -> bool,
    ) -> Result<Named, Trouble> {
        let mut ask = ListAsk { region: Some(region.to_owned()), ..ListAsk::of(name) };
        let mut found = Named { listed: Vec::new(), incomplete: None };
        for pages in 1.. {
            let page = self.in_time(provider.list(&ask)).await?;
            found.listed.extend(page.listed.into_iter().filter(&is_wanted));
            found.incomplete = found.incomplete.or(page.incomplete.into_iter().next());
            if !goes_on(&mut ask, page.next, pages, MOST_NAMED_PAGES)? {
                break;
            }
        }
        Ok(found)
    }
}

/// Asks for the next page. False behind the last one; an error where there is always another.
pub(super) fn goes_on(ask: &mut ListAsk, next: Option<String>, pages: i64, most: i64) -> Result<bool, Trouble> {
    if next.is_some() && next == ask.after {
        return Err(Trouble::internal("its list does not go on"));
    }
    if next.is_some() && pages >= most {
        return Err(Trouble::internal(format!("its list has more than {most} pages")));
    }
    ask.after = next;
    Ok(ask.after.is_some())
}

/// The answer, unless one of the limits is over first. What the provider does then is not known.
async fn answered<T>(mut asked: ProviderFuture<'_, T>, limits: &mut [&mut Limit]) -> Result<T, Trouble> {
    poll_fn(|context| {
        if let Poll::Ready(answer) = asked.as_mut().poll(context) {
            return Poll::Ready(answer);
        }
        let Some(limit) = limits.iter_mut().find_map(|limit| limit.is_over(context).then_some(limit.ms)) else {
            return Poll::Pending;
        };
        let what = format!("it did not answer within {} s", limit / SECOND);
        Poll::Ready(Err(Trouble::new(TroubleKind::Timeout, what).perhaps()))
    })
    .await
}

/// Runs these, so many at the same time, and answers in their order. All that are under way are polled each time, because a simulated clock
/// wakes no task.
pub(super) async fn side_by_side<T>(asked: Vec<impl Future<Output = T>>, at_once: usize) -> Vec<T> {
    let mut done: Vec<Option<T>> = asked.iter().map(|_| None).collect();
    let (mut waiting, mut under_way) = (asked.into_iter().map(Box::pin).enumerate(), Vec::new());
    poll_fn(|context| {
        loop {
            let begun = waiting.by_ref().take(at_once - under_way.len());
            under_way.extend(begun);
            let before = under_way.len();
            under_way.retain_mut(|(number, asked)| match asked.as_mut().poll(context) {
                Poll::Ready(answer) => {
                    done[*number] = Some(answer);
                    false
                }
                Poll::Pending => true,
            });
            match under_way.len() {
                0 if before == 0 => return Poll::Ready(()),
                left if left == before => return Poll::Pending,
                _ => {} // there is room for others
            }
        }
    })
    .await;
    done.into_iter().flatten().collect()
}
