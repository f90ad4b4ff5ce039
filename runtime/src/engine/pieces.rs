//! Pieces of the cache that leave the engine and come back: copied as they lie in the memory of all
//! ranks, without a look at what is in them.
use super::{Engine, StepError, states_of};
use crate::device::DeviceError;
use crate::kv::{Piece, SeqId};
use crate::offload::{Group, Layout};
use crate::session::Session;
use crate::weights::packed;
use std::sync::Arc;

/// Bytes of a device's weights that are hashed at once.
const STAGE_BYTES: usize = 64 << 20;

impl Engine {
    /// What the pieces of this engine's cache are like. Its key has all that their bytes depend on
    /// beside tokens and who asks: the artifact, the device, whether there is a draft, and
    /// `weights`.
    pub fn cache_layout(&self, weights: &[u8]) -> Layout {
        let mut key = blake3::Hasher::new();
        let mut field = |bytes: &[u8]| {
            key.update(&(bytes.len() as u64).to_le_bytes());
            key.update(bytes);
        };
        field(self.artifact().fingerprint().to_string().as_bytes());
        for session in self.sessions() {
            field(session.code.name.as_bytes());
            // Kind, number and variant: any device of the same kind will do.
            let name = session.device.name().split(':').filter(|part| part.parse::<usize>().is_err());
            name.for_each(|part| field(part.as_bytes()));
            field(session.device.product().unwrap_or_default().as_bytes());
        }
        field(&[u8::from(self.draft.is_some())]);
        field(weights);
        let block_tokens = self.kv.block_tokens();
        let group = |(number, unit): (usize, &crate::states::Unit)| {
            let of_group = |session: &Session| session.memory.states.iter().filter(|s| s.table == number).count();
            let states: usize = self.sessions().map(of_group).sum();
            Group { kept: unit.kept, page_tokens: block_tokens * unit.kept.every(), bytes: states * unit.bytes }
        };
        let groups = self.session.units.iter().enumerate().map(group).collect();
        Layout { key: *key.finalize().as_bytes(), block_tokens, groups }
    }

    /// A hash of all weights as they lie on the devices, adapters and the draft's with them: every
    /// byte is read.
    pub fn weights_hash(&mut self) -> Result<[u8; 32], DeviceError> {
        let mut hash = blake3::Hasher::new();
        for session in std::iter::once(&mut self.session).chain(&mut self.others) {
            let pool = session.device.pool();
            for buffer in &session.memory.weights {
                hash.update(&(buffer.len() as u64).to_le_bytes());
                if let Some(view) = buffer.host_view() {
                    hash.update(packed::checksums(view, pool).as_bytes());
                    continue;
                }
                for start in (0..buffer.len()).step_by(STAGE_BYTES) {
                    let mut stage = vec![0; STAGE_BYTES.min(buffer.len() - start)];
                    buffer.download(start, &mut stage)?;
                    hash.update(packed::checksums(&stage, pool).as_bytes());
                }
            }
        }
        self.draft_map.iter().for_each(|token| _ = hash.update(&token.to_le_bytes()));
        Ok(*hash.finalize().as_bytes())
    }

    /// The pieces of the cache that a sequence has.
    pub fn pieces(&self, sequence: SeqId) -> Result<Vec<Piece>, StepError> {
        Ok(self.kv.pieces(sequence)?)
    }

    /// The bytes of a piece that a sequence has, those of all states and ranks one after the other.
    pub fn read_piece(&mut self, piece: &Piece) -> Result<Vec<u8>, StepError> {
        let bytes = self.session.units[piece.group].bytes;
        let mut all = vec![];
        for state in states_of((&mut self.session, &mut self.others), piece.group) {
            let first = all.len();
            all.resize(first + bytes, 0);
            state.pages.download(piece.unit * bytes, &mut all[first..])?;
        }
        Ok(all)
    }

    /// Lengthens a sequence, which is new or a fork, to `tokens` tokens that were computed before.
    /// `load` has the bytes of each piece of them, as [`Engine::read_piece`] gave them. If it has
    /// not the sequence is taken back. Returns the tokens that it has then.
    pub fn bring(
        &mut self,
        sequence: SeqId,
        tokens: usize,
        load: &mut dyn FnMut(&Piece) -> Option<Arc<[u8]>>,
    ) -> Result<usize, StepError> {
        let before = self.kv.len(sequence)?;
        for piece in self.kv.bring(sequence, tokens)? {
            let done = match load(&piece) {
                Some(bytes) => self.write_piece(&piece, &bytes),
                None => return self.rewind(sequence, before),
            };
            if let Err(error) = done {
                self.kv.spoil(sequence, 0)?;
                return Err(error);
            }
        }
        self.kv.keep_snapshot(sequence)?;
        self.copy_blocks()?;
        Ok(tokens)
    }

    fn write_piece(&mut self, piece: &Piece, from: &[u8]) -> Result<(), StepError> {
        let bytes = self.session.units[piece.group].bytes;
        // The values in this page have to be cleared for its next owner.
        let untouched = &mut self.untouched[piece.group];
        *untouched = (*untouched).max(piece.unit + 1);
        let states = states_of((&mut self.session, &mut self.others), piece.group);
        for (state, from) in states.zip(from.chunks_exact(bytes.max(1))) {
            state.pages.upload(piece.unit * bytes, from)?;
        }
        Ok(())
    }

    /// Of all ranks.
    fn sessions(&self) -> impl Iterator<Item = &Session> {
        std::iter::once(&self.session).chain(&self.others)
    }
}
