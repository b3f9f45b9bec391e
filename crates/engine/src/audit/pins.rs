//! The pins of results: each row stands in the index, each pin of the index has a row, and its exec decodes.

use super::{Audit, merge};
use crate::cache::rebuild::{compare, projects};
use crate::{Engine, cached_run};
use model::{Failure, OrgId};

const INVARIANT: &str = "9 pins";

impl Engine {
    pub(super) async fn audit_pins(&self, org: OrgId, audit: &mut Audit) -> Result<(), Failure> {
        let own = cached_run::project(&self.context);
        let found = self
            .store
            .read("audit.pins", move |tx| {
                let mut audit = Audit::default();
                for project in projects(tx, org, &own)? {
                    let compared = match compare(tx, org, &project) {
                        Ok(compared) => compared,
                        Err(failure) => {
                            audit.must(false, INVARIANT, org, || format!("project {project}: {failure}"));
                            continue;
                        }
                    };
                    if compared.rows > 0 {
                        *audit.checked.entry("pins").or_default() += compared.rows;
                    }
                    for (node, flaw) in compared.flaws {
                        audit.must(false, INVARIANT, node, || format!("{org}, project {project}: {}", flaw.said()));
                    }
                }
                Ok(audit)
            })
            .await?;
        merge(audit, found);
        Ok(())
    }
}
