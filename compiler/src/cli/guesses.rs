//! The options of every verb that answers with the help of a draft.
use atomc_runtime::Engine;

use super::failure::Failure;

#[derive(clap::Args)]
pub struct GuessArgs {
    /// Tokens that the artifact's draft guesses behind an answer, for one step to verify. The
    /// answer is the same, and comes faster where guesses are right
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub speculate: usize,
}

impl GuessArgs {
    /// Checks that the artifact was made for this number of guesses.
    pub fn check(&self, engine: &Engine) -> Result<(), Failure> {
        let help = "`atomc compile --draft mtp --speculate N`, or with the folder of an EAGLE-3 head.";
        match self.speculate {
            0 => Ok(()),
            _ if !engine.has_draft() => Err(Failure::new("speculate", "the artifact has no draft").help(help)),
            guesses => match engine.verifies() {
                Some(each) if guesses < each => Ok(()),
                most => {
                    let most = most.map_or(0, |each| each - 1);
                    let message = format!("{guesses} guesses, but the artifact's steps verify {most} at most");
                    Err(Failure::new("speculate", message).help(help))
                }
            },
        }
    }
}
