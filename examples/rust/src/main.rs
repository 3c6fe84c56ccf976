//! A toy model that records a trace: FIRSTDIFF_TRACE=toy.h5 cargo run && firstdiff inspect toy.h5
mod firstdiff_trace;
use firstdiff_trace::Tracer;

const N_EMBD: usize = 4;
const N_VOCAB: usize = 6;

fn forward(tokens: &[i32], trace: &Tracer) {
    trace.step(tokens);
    let x: Vec<f32> = tokens.iter().flat_map(|&t| (0..N_EMBD).map(move |i| (t as usize + i) as f32)).collect();
    trace.put("token_embd", &x, tokens.len());
    let mut logits = Vec::new();
    for row in x.chunks(N_EMBD) {
        for o in 0..N_VOCAB {
            logits.push(row.iter().enumerate().map(|(i, v)| (o as f32 - i as f32) * v).sum());
        }
    }
    trace.put("logits", &logits, tokens.len());
}

fn main() {
    let trace = Tracer::from_env("toy in Rust", "f32");
    let output: Vec<f32> = (0..N_VOCAB).flat_map(|o| (0..N_EMBD).map(move |i| o as f32 - i as f32)).collect();
    trace.put_weight("output.weight", &output, N_VOCAB);
    forward(&[5, 0, 3], &trace);
    forward(&[1], &trace);
    forward(&[1], &trace);
    if let Err(message) = trace.close() {
        eprintln!("no trace: {message}");
        std::process::exit(2);
    }
}
