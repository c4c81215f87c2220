//! Texts of a file, one a line, to vectors: CPU seconds of each round, with one model for all or, with `fresh`, with
//! another one each, loaded before.
use model2vec_rs::model::StaticModel;

fn cpu_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let load = || StaticModel::from_pretrained(&arguments[1], None, None, None).unwrap();
    let fresh = arguments[4] == "fresh";
    let mut model = load();
    let file = std::fs::read_to_string(&arguments[2]).unwrap();
    let texts: Vec<String> = file.split('\n').map(str::to_owned).collect();
    for round in 0..arguments[3].parse().unwrap() {
        if fresh && round > 0 {
            model = load();
        }
        let started = cpu_seconds();
        let numbers = model.encode_flat(&texts).len();
        println!("{} {}", cpu_seconds() - started, numbers);
    }
}
