//! Tells the holders of agents' items that this process ends: they abort their calls, record each, and give their items back.

use tokio::sync::watch;

#[derive(Default)]
pub(crate) struct Closing(watch::Sender<bool>);

impl Closing {
    pub(crate) fn ask(&self) {
        self.0.send_replace(true);
    }

    /// Ready once the process has been asked to end. A wait that is dropped leaves nothing behind.
    pub(crate) async fn asked(&self) {
        let mut asked = self.0.subscribe();
        // The sender lives as long as the engine, on which the caller works.
        drop(asked.wait_for(|asked| *asked).await.expect("the engine is there"));
    }
}
