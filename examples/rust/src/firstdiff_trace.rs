//! Bindings to libfirstdiff_trace, by hand: what an engine that keeps its tensors in slices needs. firstdiff_trace.h is
//! the manual.
use std::ffi::{c_char, c_int, CStr, CString};
use std::ptr;

#[repr(C)]
struct Raw {
    _private: [u8; 0],
}

/// fd_tracer_options.
#[repr(C)]
struct Options {
    engine: *const c_char,
    numerics: *const c_char,
    kv_type: *const c_char,
    device: *const c_char,
    model_file: *const c_char,
    prompt: *const c_char,
    memory: usize,
    copy: Option<unsafe extern "C" fn()>,
    copy_user: *mut u8,
    synchronous: c_int,
}

#[link(name = "firstdiff_trace")]
extern "C" {
    fn fd_tracer_open(path: *const c_char, options: *const Options) -> *mut Raw;
    fn fd_tracer_put_weight_f32(t: *mut Raw, name: *const c_char, data: *const f32, rows: i64, columns: i64) -> c_int;
    fn fd_tracer_step(tracer: *mut Raw, tokens: *const i32, count: i32) -> c_int;
    fn fd_tracer_put_f32(t: *mut Raw, name: *const c_char, data: *const f32, rows: i64, columns: i64) -> c_int;
    fn fd_tracer_close(tracer: *mut Raw, message: *mut c_char, size: usize) -> c_int;
}

/// A trace, or nothing when FIRSTDIFF_TRACE is not set. Calls after a failure do nothing; `close` says what it was.
pub struct Tracer(*mut Raw);
unsafe impl Send for Tracer {}
unsafe impl Sync for Tracer {}

impl Tracer {
    /// The file that FIRSTDIFF_TRACE names; `numerics` as "f32" or "f16".
    pub fn from_env(engine: &str, numerics: &str) -> Tracer {
        let engine = CString::new(engine).unwrap_or_default();
        let numerics = CString::new(numerics).unwrap_or_default();
        let options = Options {
            engine: engine.as_ptr(),
            numerics: numerics.as_ptr(),
            kv_type: ptr::null(),
            device: ptr::null(),
            model_file: ptr::null(),
            prompt: ptr::null(),
            memory: 0,
            copy: None,
            copy_user: ptr::null_mut(),
            synchronous: 0,
        };
        Tracer(unsafe { fd_tracer_open(ptr::null(), &options) })
    }

    /// A weight as it was loaded, [rows, data.len() / rows], under its name in the GGUF; before the first step.
    pub fn put_weight(&self, name: &str, data: &[f32], rows: usize) {
        let name = CString::new(name).unwrap_or_default();
        let columns = if rows > 0 { data.len() / rows } else { 0 };
        assert!(rows * columns == data.len(), "{} elements in {rows} rows", data.len());
        unsafe { fd_tracer_put_weight_f32(self.0, name.as_ptr(), data.as_ptr(), rows as i64, columns as i64) };
    }

    /// A forward call that feeds these tokens.
    pub fn step(&self, tokens: &[i32]) {
        unsafe { fd_tracer_step(self.0, tokens.as_ptr(), tokens.len() as i32) };
    }

    /// [rows, data.len() / rows], one row for each token of the step.
    pub fn put(&self, name: &str, data: &[f32], rows: usize) {
        let name = CString::new(name).unwrap_or_default();
        let columns = if rows > 0 { data.len() / rows } else { 0 };
        assert!(rows * columns == data.len(), "{} elements in {rows} rows", data.len());
        unsafe { fd_tracer_put_f32(self.0, name.as_ptr(), data.as_ptr(), rows as i64, columns as i64) };
    }

    /// Marks the trace as complete; the first failure otherwise.
    pub fn close(self) -> Result<(), String> {
        let mut message = [0 as c_char; 1024];
        let failed = unsafe { fd_tracer_close(self.0, message.as_mut_ptr(), message.len()) };
        std::mem::forget(self);
        match failed {
            0 => Ok(()),
            _ => Err(unsafe { CStr::from_ptr(message.as_ptr()) }.to_string_lossy().into_owned()),
        }
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        unsafe { fd_tracer_close(self.0, ptr::null_mut(), 0) };
    }
}
