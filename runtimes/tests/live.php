<?php
// Stacks that stay as they are, for a test that reads them from outside: the argument is the number of the kind;
// without one, PHP is busy.
//
// Prints a line: the process id, then NAME|FILE|LINE of each frame, innermost first, separated by tabs. Internal
// functions have file and line of their caller.

namespace Live;

function report(): void
{
    $calls = debug_backtrace(DEBUG_BACKTRACE_IGNORE_ARGS);
    $parts = [getmypid()];
    foreach ($calls as $at => $call) {
        // A call has the place that it was made from: that of its caller.
        $caller = $calls[$at + 1] ?? ['function' => '{main}'];
        $name = $caller['function'];
        $name = isset($caller['class']) ? explode("\0", $caller['class'])[0] . '::' . $name : $name;
        $parts[] = isset($call['file']) ? "$name|{$call['file']}|{$call['line']}" : $name;
    }
    echo implode("\t", $parts), "\n";
}

function park(): int
{
    report(); sleep(600);
    return 0;
}

function recursive(int $depth): int
{
    return $depth == 0 ? park() : recursive($depth - 1) + 1;
}

interface Runs
{
    public function run(): mixed;
}

abstract class Base implements Runs
{
    public static function build(): static
    {
        return new static();
    }

    public function __call($name, $arguments)
    {
        return $this->run();
    }

    public function __toString(): string
    {
        return 'text' . array_sum(array_map(fn ($one) => $one + park(), [1, 2]));
    }
}

class Räume extends Base implements \IteratorAggregate
{
    public function __construct()
    {
        $this->values = [3, 1, 2];
    }

    public array $values;

    public function run(): mixed
    {
        usort($this->values, function ($a, $b) {
            return call_user_func_array([$this, 'größe'], [$a, $b]);
        });
        return null;
    }

    public function größe(...$values): int
    {
        return park() + count(
            $values
        );
    }

    public function getIterator(): \Iterator
    {
        foreach ($this->values as $value) {
            yield $value => park();
        }
    }
}

function caught(): void
{
    try {
        throw new \RuntimeException('it fails');
    } catch (\RuntimeException) {
        try {
            intdiv(1, 0);
        } finally {
            park();
        }
    }
}

function anonymous(): void
{
    (new class extends Base {
        public function run(): mixed
        {
            return park();
        }
    })->missing(1);
}

function work(int $depth): int
{
    $total = 0;
    for ($i = 0; $i < 20; $i++) {
        $total += $i * $depth % 7;
    }
    $text = str_repeat('text', $depth + 1) . md5((string) $total);
    usort_values($text);
    return $depth == 0 ? strlen($text) : array_sum(array_map(fn ($one) => work($depth - 1) + $one, [1, 2]));
}

function usort_values(string $text): array
{
    $letters = str_split($text);
    usort($letters, fn ($a, $b) => $a <=> $b);
    return $letters;
}

function busy(): void
{
    while (true) {
        work(4);
    }
}

$kinds = [
    fn () => recursive(150),
    fn () => Räume::build()->run(),
    fn () => (string) Räume::build(),
    fn () => iterator_to_array(new Räume()),
    fn () => caught(),
    fn () => anonymous(),
    fn () => preg_replace_callback('/t/', fn ($found) => park(), 'text'),
    fn () => (new \ReflectionFunction('Live\park'))->invoke(),
    fn () => eval("\n\nreturn \\Live\\park();"),
    fn () => (new \Fiber(fn () => recursive(2)))->start(),
];
for ($i = 0; $i < 30; $i++) {
    work(2);
}
if (isset($argv[1])) {
    $kinds[(int) $argv[1]]();
} else {
    echo getmypid(), "\n";
    busy();
}
