//! Hints about one run. The holder of an agent's item waits for them while its calls are under way.

use model::RunId;
use std::future::{Future, pending};
use std::pin::Pin;
use std::task::{Context, Poll};
use store::Hint;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

type Heard = Pin<Box<dyn Future<Output = Receiver<Hint>> + Send>>;

/// The wait for the next hint is kept from poll to poll: one that is dropped in between wakes nothing.
pub(super) struct RunHints {
    run: RunId,
    next: Heard,
}

impl RunHints {
    pub(super) fn new(hints: Receiver<Hint>, run: RunId) -> RunHints {
        RunHints { run, next: Box::pin(heard(hints, run)) }
    }

    /// Ready if the run may have changed since it was ready last.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.next.as_mut().poll(context).map(|hints| self.next = Box::pin(heard(hints, self.run)))
    }
}

/// Returns with the first hint that may be about this run.
async fn heard(mut hints: Receiver<Hint>, run: RunId) -> Receiver<Hint> {
    loop {
        match hints.recv().await {
            Ok(Hint::Run(of)) if of == run => return hints,
            Ok(Hint::Everything) | Err(RecvError::Lagged(_)) => return hints,
            Ok(_) => {}
            Err(RecvError::Closed) => pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Wake, Waker};
    use tokio::sync::broadcast;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_hint_about_the_run_wakes_who_waits_for_it() {
        let (sender, receiver) = broadcast::channel(4);
        let mut hints = RunHints::new(receiver, RunId(7));
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let mut context = Context::from_waker(&waker);
        for hint in [Hint::Run(RunId(7)), Hint::Everything] {
            assert!(hints.poll(&mut context).is_pending());
            let before = woken.0.load(Ordering::Relaxed);
            sender.send(hint).unwrap();
            assert!(woken.0.load(Ordering::Relaxed) > before, "{hint:?}");
            assert!(hints.poll(&mut context).is_ready());
        }
        sender.send(Hint::Run(RunId(8))).unwrap();
        assert!(hints.poll(&mut context).is_pending(), "of another run");
    }
}
