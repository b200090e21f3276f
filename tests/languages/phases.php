<?php
// Functions that measure themselves: phases.php SECONDS. Prints `phase NAME SECONDS`, by the process's CPU clock.

$spent = [];

function now() {
    $usage = getrusage();
    return $usage['ru_utime.tv_sec'] + $usage['ru_stime.tv_sec']
        + ($usage['ru_utime.tv_usec'] + $usage['ru_stime.tv_usec']) / 1e6;
}

function work($limit) {
    $count = 0;
    while (now() < $limit) {
        for ($i = 0; $i < 300; $i++) {
            $count += $i * $i % 7;
        }
    }
    return $count;
}

function plain($limit) {
    work($limit);
}

function recursive($limit, $depth = 40) {
    return $depth > 0 ? recursive($limit, $depth - 1) : work($limit);
}

function called_back($limit) {
    array_map(function ($_) use ($limit) { return work($limit); }, [0]);
}

function fail($count) {
    throw new InvalidArgumentException("count $count");
}

function thrown($limit) {
    $count = 0;
    while (now() < $limit) {
        try {
            fail($count);
        } catch (InvalidArgumentException $error) {
            $count += strlen($error->getMessage());
        }
    }
}

function values($limit) {
    yield work($limit);
}

function generated($limit) {
    foreach (values($limit) as $value) {
        is_int($value);
    }
}

function measure($function, $seconds) {
    global $spent;
    $start = now();
    $function($start + $seconds);
    $spent[$function] = ($spent[$function] ?? 0) + now() - $start;
}

echo "begun\n";
for ($round = 0; $round < (float) $argv[1] * 20; $round++) {
    measure('plain', 0.012);
    measure('recursive', 0.008);
    measure('generated', 0.006);
    measure('thrown', 0.005);
    measure('called_back', 0.004);
}
foreach ($spent as $name => $seconds) {
    echo "phase $name $seconds\n";
}
