//! The suite that every provider passes, run on each of them.

#[allow(dead_code, reason = "the tests of the local provider alone use the rest")]
mod support;

mod local {
    adapters::provider_conformance!(crate::support::local);
}

mod exec {
    adapters::provider_conformance!(crate::support::exec);
}

/// The same program, which says of itself only what every provider must do.
mod exec_plain {
    adapters::provider_conformance!(crate::support::exec_plain);
}

mod exec_least {
    adapters::provider_conformance!(crate::support::exec_least);
}

/// The manual says how little is enough.
#[test]
fn the_least_program_has_thirty_lines() {
    let program = include_str!("../../../examples/providers/plain.py");
    assert!(program.lines().count() <= 30);
}

mod ssh {
    adapters::provider_conformance!(crate::support::sshd::ssh);
}

mod fake {
    use adapters::conformance::{Deed, MACHINES, Subject};
    use adapters::fake::{FakeSettings, Fate};
    use adapters::{FakeProvider, Provider};

    struct Fake(FakeProvider);

    fn fake() -> Fake {
        let mut settings = FakeSettings::default();
        settings.capabilities.max_instances = MACHINES;
        Fake(FakeProvider::new(settings, Box::new(|_, _| Fate::Obey)))
    }

    impl Subject for Fake {
        fn provider(&self) -> &dyn Provider {
            &self.0
        }
        fn await_runner<'a>(&'a self, _name: &'a str) -> Deed<'a> {
            Box::pin(std::future::ready(()))
        }
        fn kill_runner(&self, name: &str) {
            self.0.kill_runner(name);
        }
        fn replace_by_stranger<'a>(&'a self, name: &'a str) -> Deed<'a> {
            self.0.replace_by_stranger(name);
            Box::pin(std::future::ready(()))
        }
        fn starts(&self, name: &str) -> usize {
            self.0.machine(name).map_or(0, |machine| machine.starts as usize)
        }
    }

    adapters::provider_conformance!(fake);
}
