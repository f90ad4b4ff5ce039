//! Tensors of other libraries, and ours for them, as DLPack has it:
//! <https://dmlc.github.io/dlpack/latest/c_api.html>. Nothing is copied either way. A capsule that
//! was not consumed frees its tensor.
use crate::error::WeightsError;
use atomc_artifact::manifest::DType;
use atomc_runtime::checkpoint::{Float, OnDevice};
use atomc_runtime::hosted::Rows;
use atomc_runtime::weights::Numbers;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::borrow::Cow;
use std::ffi::{CStr, c_void};

const CPU: i32 = 1;
/// Memory of the host that a device copies from by itself.
const CUDA_HOST: i32 = 3;
const ROCM_HOST: i32 = 11;
const CUDA: i32 = 2;
const ROCM: i32 = 10;

const INT: u8 = 0;
const UINT: u8 = 1;
const FLOAT: u8 = 2;
const BFLOAT: u8 = 4;
const FLOAT8_E4M3FN: u8 = 10;
const FLOAT8_E8M0FNU: u8 = 14;
const FLOAT4_E2M1FN: u8 = 17;

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    kind: i32,
    number: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Type {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: Device,
    axes: i32,
    dtype: Type,
    shape: *mut i64,
    /// In elements; null where rows follow each other.
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`
#[repr(C)]
struct Managed {
    tensor: Tensor,
    holder: *mut c_void,
    delete: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// `DLManagedTensorVersioned`
#[repr(C)]
struct Versioned {
    version: [u32; 2],
    holder: *mut c_void,
    delete: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: Tensor,
}

/// What a capsule is called while it holds one, and once it was taken.
trait Form {
    const FRESH: &'static CStr;
    const TAKEN: &'static CStr;
}

impl Form for Managed {
    const FRESH: &'static CStr = c"dltensor";
    const TAKEN: &'static CStr = c"used_dltensor";
}

impl Form for Versioned {
    const FRESH: &'static CStr = c"dltensor_versioned";
    const TAKEN: &'static CStr = c"used_dltensor_versioned";
}

impl Device {
    pub const HOST: Device = Device { kind: CPU, number: 0 };

    /// A device by its name: `host:…`, `cuda:0:…`, `hip:0:…`.
    pub fn named(name: &str) -> Device {
        let mut parts = name.split(':');
        let kind = match parts.next() {
            Some("cuda") => CUDA,
            Some("hip") => ROCM,
            _ => return Device::HOST,
        };
        Device { kind, number: parts.next().and_then(|number| number.parse().ok()).unwrap_or(0) }
    }

    /// A stream by its driver's handle, as `__dlpack__` takes it: CUDA's default stream is 1.
    fn stream(self, handle: usize) -> usize {
        if self.kind == CUDA && handle == 0 { 1 } else { handle }
    }
}

/// Rows of numbers, for other libraries to look at. It keeps the owner of the memory alive, which
/// may overwrite them.
#[pyclass(frozen, module = "atomc")]
pub struct View {
    address: usize,
    shape: [i64; 2],
    strides: [i64; 2],
    dtype: DType,
    device: Device,
    owner: Py<PyAny>,
}

/// What an exported tensor keeps alive.
struct Holder {
    shape: [i64; 2],
    strides: [i64; 2],
    _owner: Py<PyAny>,
}

impl View {
    pub fn new(rows: Rows, device: Device, owner: Py<PyAny>) -> View {
        let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        View {
            address: rows.address.expose_provenance(),
            shape: [number(rows.rows), number(rows.width)],
            strides: [number(rows.stride), 1],
            dtype: rows.dtype,
            device,
            owner,
        }
    }

    /// The tensor, and the holder that its shape lies in.
    fn tensor(&self, py: Python<'_>) -> PyResult<(Tensor, Box<Holder>)> {
        let (shape, strides) = (self.shape, self.strides);
        let mut holder = Box::new(Holder { shape, strides, _owner: self.owner.clone_ref(py) });
        let tensor = Tensor {
            data: std::ptr::with_exposed_provenance_mut(self.address),
            device: self.device,
            axes: 2,
            dtype: Type::of(self.dtype),
            shape: holder.shape.as_mut_ptr(),
            strides: holder.strides.as_mut_ptr(),
            byte_offset: 0,
        };
        Ok((tensor, holder))
    }
}

#[pymethods]
impl View {
    /// A capsule for `from_dlpack`. There is no stream to wait for: the memory is filled on the
    /// caller's own.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _ = stream;
        if copy == Some(true) || dl_device.is_some_and(|wanted| wanted != self.__dlpack_device__()) {
            return Err(PyBufferError::new_err("a view is not copied, and stays where it is"));
        }
        let (tensor, holder) = self.tensor(py)?;
        let holder = Box::into_raw(holder).cast();
        if max_version.is_some_and(|(major, _)| major >= 1) {
            let made = Versioned { version: [1, 0], holder, delete: Some(delete_versioned), flags: 0, tensor };
            capsule(py, Box::new(made), destroy::<Versioned>)
        } else {
            capsule(py, Box::new(Managed { tensor, holder, delete: Some(delete) }), destroy::<Managed>)
        }
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        (self.device.kind, self.device.number)
    }

    /// Where it begins in the memory of the device.
    #[getter]
    fn ptr(&self) -> usize {
        self.address
    }

    #[getter]
    fn shape(&self) -> (i64, i64) {
        self.shape.into()
    }

    /// In elements.
    #[getter]
    fn strides(&self) -> (i64, i64) {
        self.strides.into()
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        self.dtype.torch_name()
    }

    fn __repr__(&self) -> String {
        let [rows, width] = self.shape;
        format!("atomc.View([{rows}, {width}], {}, at {:#x})", self.dtype.torch_name(), self.address)
    }
}

impl Type {
    fn of(dtype: DType) -> Type {
        let code = match dtype {
            DType::F32 | DType::F16 => FLOAT,
            DType::BF16 => BFLOAT,
            DType::F8E4M3 => FLOAT8_E4M3FN,
            DType::E8M0 => FLOAT8_E8M0FNU,
            DType::F4E2M1 => FLOAT4_E2M1FN,
            DType::I32 | DType::I8 | DType::I4 => INT,
            DType::U8 | DType::U4 => UINT,
        };
        Type { code, bits: dtype.bits() as u8, lanes: 1 }
    }

    fn float(self) -> Option<Float> {
        match (self.code, self.bits, self.lanes) {
            (FLOAT, 16, 1) => Some(Float::F16),
            (FLOAT, 32, 1) => Some(Float::F32),
            (FLOAT, 64, 1) => Some(Float::F64),
            (BFLOAT, 16, 1) => Some(Float::BF16),
            // What quantised weights are made of.
            (INT, 64, 1) => Some(Float::I64),
            (INT, 32, 1) => Some(Float::Code(DType::I32)),
            (INT, 8, 1) => Some(Float::Code(DType::I8)),
            (UINT, 8, 1) => Some(Float::Code(DType::U8)),
            (FLOAT8_E4M3FN, 8, 1) => Some(Float::Code(DType::F8E4M3)),
            (FLOAT8_E8M0FNU, 8, 1) => Some(Float::Code(DType::E8M0)),
            _ => None,
        }
    }

    fn name(self) -> String {
        let kind = match self.code {
            INT => "int",
            UINT => "uint",
            FLOAT => "float",
            BFLOAT => "bfloat",
            5 => "complex",
            6 => "bool",
            code => return format!("DLPack's {code} of {} bits", self.bits),
        };
        format!("{kind}{}", self.bits)
    }
}

fn capsule<'py, T: Form>(
    py: Python<'py>,
    made: Box<T>,
    destructor: unsafe extern "C" fn(*mut ffi::PyObject),
) -> PyResult<Bound<'py, PyAny>> {
    let made = Box::into_raw(made);
    // SAFETY: attached to Python; the name is static; the destructor frees what is in the capsule
    // unless somebody took it.
    unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyCapsule_New(made.cast(), T::FRESH.as_ptr(), Some(destructor))) }
}

/// Frees a tensor that was not consumed.
unsafe extern "C" fn destroy<T: Form + Delete>(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this once for a capsule of ours, which holds a tensor while it has its
    // first name.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, T::FRESH.as_ptr()) == 1 {
            T::delete(ffi::PyCapsule_GetPointer(capsule, T::FRESH.as_ptr()).cast());
        }
    }
}

/// A tensor that its holder frees by a function of its own.
trait Delete {
    /// # Safety
    /// The tensor is alive, and is not used afterwards.
    unsafe fn delete(tensor: *mut Self);
}

impl Delete for Managed {
    unsafe fn delete(tensor: *mut Managed) {
        // SAFETY: passed on to the caller.
        unsafe { (*tensor).delete.into_iter().for_each(|delete| delete(tensor)) }
    }
}

impl Delete for Versioned {
    unsafe fn delete(tensor: *mut Versioned) {
        // SAFETY: passed on to the caller.
        unsafe { (*tensor).delete.into_iter().for_each(|delete| delete(tensor)) }
    }
}

/// Ends a tensor of ours, on any thread.
unsafe extern "C" fn delete(tensor: *mut Managed) {
    // SAFETY: made by `__dlpack__` of boxes, and ended once.
    let tensor = unsafe { Box::from_raw(tensor) };
    // SAFETY: as above.
    unsafe { release(tensor.holder) }
}

unsafe extern "C" fn delete_versioned(tensor: *mut Versioned) {
    // SAFETY: made by `__dlpack__` of boxes, and ended once.
    let tensor = unsafe { Box::from_raw(tensor) };
    // SAFETY: as above.
    unsafe { release(tensor.holder) }
}

/// # Safety
/// The holder is one of `__dlpack__`'s, and is released once.
unsafe fn release(holder: *mut c_void) {
    // SAFETY: passed on to the caller.
    let holder = unsafe { Box::from_raw(holder.cast::<Holder>()) };
    // At the end of the process Python may be gone, and the holder with it.
    let _ = Python::try_attach(|_| drop(holder));
}

/// A tensor of another library, in the memory of the host or of a device.
pub struct Foreign {
    on_device: bool,
    tensor: *const Tensor,
    dtype: Type,
    shape: Vec<usize>,
    /// Ends the tensor.
    end: Box<dyn FnMut()>,
}

impl Drop for Foreign {
    fn drop(&mut self) {
        (self.end)();
    }
}

impl Foreign {
    /// Takes a tensor, by the name that messages give it, for work of a device that a stream is
    /// given from now on.
    pub fn take(name: &str, from: &Bound<'_, PyAny>, device: Device, stream: usize) -> PyResult<Foreign> {
        let (kind, number) = from.call_method0("__dlpack_device__")?.extract()?;
        let on_device = ![CPU, CUDA_HOST, ROCM_HOST].contains(&kind);
        let place = Device { kind, number };
        if on_device && place != device {
            let also = if device == Device::HOST { "" } else { ", nor of the model's device" };
            return Err(WeightsError::new_err(format!("tensor `{name}` is not in the memory of the host{also}")));
        }
        let capsule = match on_device {
            true => from.call_method("__dlpack__", (), Some(&stream_argument(from.py(), device.stream(stream))?))?,
            false => from.call_method0("__dlpack__")?,
        };
        let mut foreign = Foreign::of(name, &capsule)?;
        foreign.on_device = on_device;
        Ok(foreign)
    }

    fn of(name: &str, capsule: &Bound<'_, PyAny>) -> PyResult<Foreign> {
        match taken::<Managed>(capsule)? {
            // SAFETY: just taken, and ended with the result.
            Some(managed) => unsafe {
                Foreign::new(name, &raw const (*managed).tensor, move || Managed::delete(managed))
            },
            None => match taken::<Versioned>(capsule)? {
                // SAFETY: as above; the layout is that of this major version.
                Some(managed) if unsafe { (*managed).version[0] } == 1 => unsafe {
                    Foreign::new(name, &raw const (*managed).tensor, move || Versioned::delete(managed))
                },
                Some(managed) => {
                    // SAFETY: just taken; the function that ends it lies at the same place in all
                    // versions.
                    unsafe { Versioned::delete(managed) };
                    Err(WeightsError::new_err(format!("tensor `{name}`: an unknown version of DLPack")))
                }
                None => Err(WeightsError::new_err(format!("tensor `{name}`: `__dlpack__` gave no tensor"))),
            },
        }
    }

    /// # Safety
    /// The tensor is alive until `end` is called.
    unsafe fn new(name: &str, tensor: *const Tensor, end: impl FnMut() + 'static) -> PyResult<Foreign> {
        let (shape, end) = (Vec::new(), Box::new(end));
        let mut foreign = Foreign { on_device: false, tensor, dtype: Type { code: 0, bits: 8, lanes: 1 }, shape, end };
        // SAFETY: passed on to the caller.
        let Tensor { dtype, axes, shape, .. } = unsafe { &*tensor };
        let axes = usize::try_from(*axes).map_err(|_| negative(name, "number of axes"))?;
        // SAFETY: a tensor has `axes` sizes.
        let sizes = (0..axes).map(|axis| usize::try_from(unsafe { *shape.add(axis) }));
        let sizes: Result<_, _> = sizes.collect();
        (foreign.shape, foreign.dtype) = (sizes.map_err(|_| negative(name, "size"))?, *dtype);
        Ok(foreign)
    }

    /// The type of its numbers, if weights can be made of such.
    pub fn float(&self, name: &str) -> PyResult<Float> {
        self.dtype.float().ok_or_else(|| {
            let rule = "weights may be bfloat16, float16, float32, float64, float8_e4m3fn, float8_e8m0fnu, int8, uint8, int32 or int64";
            WeightsError::new_err(format!("tensor `{name}` is of type {}; {rule}", self.dtype.name()))
        })
    }

    /// Bytes of a number.
    fn size(&self) -> usize {
        usize::from(self.dtype.bits).div_ceil(8).max(1)
    }

    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Bytes that the numbers take, if any memory has room for them.
    fn len(&self) -> Option<usize> {
        if self.shape.contains(&0) {
            return Some(0);
        }
        let bytes = self.shape.iter().try_fold(self.size(), |bytes, &len| bytes.checked_mul(len));
        bytes.filter(|&bytes| isize::try_from(bytes).is_ok())
    }

    /// The numbers, where they are.
    pub fn numbers(&self, name: &str) -> PyResult<Numbers<'_>> {
        if !self.on_device {
            return Ok(self.bytes(name)?.into());
        }
        // SAFETY: the tensor is alive.
        let tensor = unsafe { &*self.tensor };
        let address = tensor.data.cast::<u8>().wrapping_add(tensor.byte_offset as usize).cast_const();
        let uneven =
            || WeightsError::new_err(format!("tensor `{name}`: its rows do not lie evenly; make it contiguous"));
        let (row_stride, col_stride) = even(&self.shape, &self.strides(tensor)).ok_or_else(uneven)?;
        Ok(Numbers::Device(OnDevice { address, row_stride, col_stride }))
    }

    /// The numbers row by row: where they are, or put in order.
    fn bytes(&self, name: &str) -> PyResult<Cow<'_, [u8]>> {
        let memory = || WeightsError::new_err(format!("tensor `{name}` of shape {:?}: no memory", self.shape));
        let bytes = self.len().ok_or_else(memory)?;
        if bytes == 0 {
            return Ok(Cow::Borrowed(&[]));
        }
        // SAFETY: the tensor is alive.
        let tensor = unsafe { &*self.tensor };
        let (size, count) = (self.size(), bytes / self.size());
        let start = tensor.data.cast::<u8>().wrapping_add(tensor.byte_offset as usize).cast_const();
        let strides = self.strides(tensor);
        let mut dense = 1;
        let mut follows = true;
        for (&len, &stride) in self.shape.iter().zip(&strides).rev() {
            follows &= len == 1 || stride == dense;
            dense *= len as isize;
        }
        if follows {
            // SAFETY: `bytes` bytes lie there without gaps.
            return Ok(Cow::Borrowed(unsafe { std::slice::from_raw_parts(start, bytes) }));
        }
        let mut ordered = Vec::new();
        ordered.try_reserve_exact(bytes).map_err(|_| memory())?;
        for index in 0..count {
            let mut rest = index;
            let mut at = 0;
            for (&len, &stride) in self.shape.iter().zip(&strides).rev() {
                at += (rest % len) as isize * stride;
                rest /= len;
            }
            // SAFETY: an element of the tensor.
            ordered.extend_from_slice(unsafe { std::slice::from_raw_parts(start.offset(at * size as isize), size) });
        }
        Ok(Cow::Owned(ordered))
    }

    fn strides(&self, tensor: &Tensor) -> Vec<isize> {
        if !tensor.strides.is_null() {
            // SAFETY: there is one for each axis.
            return (0..self.shape.len()).map(|axis| unsafe { *tensor.strides.add(axis) } as isize).collect();
        }
        let after = |axis: usize| self.shape[axis + 1..].iter().product::<usize>() as isize;
        (0..self.shape.len()).map(after).collect()
    }
}

/// From one row to the next and from one column to the next, if all axes but the last are rows of
/// one distance.
fn even(shape: &[usize], strides: &[isize]) -> Option<(isize, isize)> {
    let (&col, outer) = strides.split_last()?;
    let (mut row, mut next) = (None, None);
    for (&len, &stride) in shape.iter().zip(outer).rev().filter(|(len, _)| **len > 1) {
        if next.is_some_and(|next| next != stride) {
            return None;
        }
        row = row.or(Some(stride));
        next = stride.checked_mul(len as isize);
    }
    Some((row.unwrap_or(0), col))
}

fn stream_argument(py: Python<'_>, stream: usize) -> PyResult<Bound<'_, PyDict>> {
    let arguments = PyDict::new(py);
    arguments.set_item("stream", stream)?;
    Ok(arguments)
}

fn negative(name: &str, what: &str) -> PyErr {
    WeightsError::new_err(format!("tensor `{name}` has a negative {what}"))
}

/// What a capsule of this form holds, which is now the caller's to end.
fn taken<T: Form>(capsule: &Bound<'_, PyAny>) -> PyResult<Option<*mut T>> {
    // SAFETY: attached to Python; the names are static, and a capsule of that name holds that.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule.as_ptr(), T::FRESH.as_ptr()) != 1 {
            return Ok(None);
        }
        let held = ffi::PyCapsule_GetPointer(capsule.as_ptr(), T::FRESH.as_ptr());
        if held.is_null() || ffi::PyCapsule_SetName(capsule.as_ptr(), T::TAKEN.as_ptr()) != 0 {
            return Err(PyErr::fetch(capsule.py()));
        }
        Ok(Some(held.cast()))
    }
}
