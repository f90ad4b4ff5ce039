//! Memory and arguments of launches.

/// Memory of a launch: it begins where a page does, and kernels may read (and, out of bounds,
/// write) beyond its end, as several of AITER's do.
pub struct Buffer {
    pages: Vec<Page>,
    len: usize,
}

#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct Page([u8; 4096]);

/// Bytes after a buffer: kernels load the tile after the last one as well.
pub const SLACK: usize = 128 << 10;

impl Buffer {
    pub fn zeros(len: usize) -> Buffer {
        Buffer { pages: vec![Page([0; 4096]); (len + SLACK).div_ceil(4096)], len }
    }

    pub fn bytes(data: &[u8]) -> Buffer {
        let mut buffer = Buffer::zeros(data.len());
        // SAFETY: pages are bytes without padding, and there are more of them.
        let all = unsafe { std::slice::from_raw_parts_mut(buffer.pages.as_mut_ptr().cast::<u8>(), data.len()) };
        all.copy_from_slice(data);
        buffer
    }

    pub fn halves(data: &[u16]) -> Buffer {
        Buffer::bytes(&data.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())
    }

    pub fn words(data: &[u32]) -> Buffer {
        Buffer::bytes(&data.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())
    }

    pub fn floats(data: &[f32]) -> Buffer {
        Buffer::bytes(&data.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())
    }

    pub fn address(&self) -> u64 {
        self.pages.as_ptr() as u64
    }

    /// Bytes without the slack.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes with the slack.
    pub fn mapped(&self) -> u64 {
        self.pages.len() as u64 * 4096
    }

    fn data(&self) -> &[u8] {
        // SAFETY: pages are bytes without padding.
        unsafe { std::slice::from_raw_parts(self.pages.as_ptr().cast(), self.len) }
    }

    pub fn as_words(&self) -> impl Iterator<Item = u32> {
        self.data().as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b))
    }

    /// The numbers of a float32 buffer.
    pub fn as_floats(&self) -> impl Iterator<Item = f64> {
        self.as_words().map(|w| f64::from(f32::from_bits(w)))
    }

    /// The numbers of a bf16 buffer.
    pub fn as_bf16(&self) -> impl Iterator<Item = f64> {
        let halves = self.data().as_chunks::<2>().0.iter();
        halves.map(|b| f64::from(atomc_emulator::num::bf16_to_f32(u16::from_le_bytes(*b))))
    }
}

/// Kernel arguments, each of them in 16 bytes.
#[derive(Clone, Debug, Default)]
pub struct Slots(Vec<u8>);

impl Slots {
    pub fn pointer(&mut self, address: u64) -> &mut Slots {
        self.push(&address.to_le_bytes())
    }

    pub fn null(&mut self) -> &mut Slots {
        self.pointer(0)
    }

    pub fn word(&mut self, value: u32) -> &mut Slots {
        self.push(&value.to_le_bytes())
    }

    pub fn float(&mut self, value: f32) -> &mut Slots {
        self.word(value.to_bits())
    }

    pub fn words(&mut self, values: &[u32]) -> &mut Slots {
        for value in values {
            self.word(*value);
        }
        self
    }

    pub fn buffers<'b>(&mut self, buffers: impl IntoIterator<Item = &'b Buffer>) -> &mut Slots {
        for buffer in buffers {
            self.pointer(buffer.address());
        }
        self
    }

    fn push(&mut self, value: &[u8]) -> &mut Slots {
        let end = self.0.len() + 16;
        self.0.extend_from_slice(value);
        self.0.resize(end, 0);
        self
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}
