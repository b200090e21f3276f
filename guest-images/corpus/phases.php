<?php
// Phases of known shares of the CPU: phases.php SECONDS. Prints `phase NAME SECONDS`, by the process's CPU clock.

function fib($n) {
    return $n < 2 ? $n : fib($n - 1) + fib($n - 2);
}

function sieve($n) {
    $composite = array_fill(0, $n + 1, false);
    $count = 0;
    for ($candidate = 2; $candidate <= $n; $candidate++) {
        if (!$composite[$candidate]) {
            $count++;
            for ($multiple = 2 * $candidate; $multiple <= $n; $multiple += $candidate) {
                $composite[$multiple] = true;
            }
        }
    }
    return $count;
}

function text($n) {
    $records = [];
    for ($i = 0; $i < $n; $i++) {
        $records[] = ['name' => "item $i", 'value' => $i * 1.5];
    }
    return preg_match_all('/item \d+/', json_encode($records));
}

function check($right) {
    if (!$right) {
        throw new Exception('a wrong result');
    }
}

function run_fib() {
    check(fib(11) === 89);
}

function run_sieve() {
    check(sieve(1000) === 168);
}

function run_text() {
    check(text(50) === 50);
}

function cpu_seconds() {
    $usage = getrusage();
    return $usage['ru_utime.tv_sec'] + $usage['ru_stime.tv_sec']
        + ($usage['ru_utime.tv_usec'] + $usage['ru_stime.tv_usec']) / 1e6;
}

$phases = ['fib' => ['run_fib', 0.5], 'sieve' => ['run_sieve', 0.3], 'text' => ['run_text', 0.2]];
$used = ['fib' => 0.0, 'sieve' => 0.0, 'text' => 0.0];
for ($done = 0.25; $done < (float) $argv[1] + 0.125; $done += 0.25) {
    foreach ($phases as $name => [$run, $weight]) {
        $start = $now = cpu_seconds();
        $end = $start + $done * $weight - $used[$name];
        while ($now < $end) {
            $run();
            $now = cpu_seconds();
        }
        $used[$name] += $now - $start;
    }
}
foreach ($used as $name => $spent) {
    printf("phase %s %.6f\n", $name, $spent);
}
printf("total %.6f\n", cpu_seconds());
