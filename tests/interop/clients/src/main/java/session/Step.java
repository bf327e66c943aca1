package session;

import java.util.Objects;

/** One line a step: `ok`, or `FAILED` with the first difference, which ends the session (with `-Dgo.on=true` the end does). */
final class Step {
    interface Body {
        void run() throws Exception;
    }

    /** What was found is not what was expected. */
    static final class Difference extends RuntimeException {
        Difference(String text) {
            super(text);
        }
    }

    private static int failed;

    private Step() {}

    static void run(String name, Body body) {
        long started = System.nanoTime();
        try {
            body.run();
        } catch (Throwable error) {
            failed++;
            System.out.println("FAILED  " + name + ": " + reason(error));
            if (!(error instanceof Difference)) error.printStackTrace();
            if (!Boolean.getBoolean("go.on")) end();
            return;
        }
        System.out.printf("ok      %s (%.1f s)%n", name, (System.nanoTime() - started) / 1e9);
    }

    /** Ends the process. */
    static void end() {
        System.out.flush();
        System.exit(failed > 0 ? 1 : 0);
    }

    private static String reason(Throwable error) {
        return error instanceof Difference ? error.getMessage() : error.toString();
    }

    static void same(String what, Object found, Object expected) {
        if (!Objects.equals(found, expected)) throw new Difference(what + ": found " + brief(found) + ", expected " + brief(expected));
    }

    static void check(String what, boolean holds) {
        if (!holds) throw new Difference(what);
    }

    private static String brief(Object value) {
        String text = String.valueOf(value);
        return text.length() > 1500 ? text.substring(0, 1500) + "…" : text;
    }

    /** The call must fail with an exception whose class has this simple name. */
    static void refused(String what, String exception, Body call) throws Exception {
        try {
            call.run();
        } catch (Exception error) {
            Throwable cause = error;
            while (cause instanceof java.util.concurrent.ExecutionException || cause instanceof java.util.concurrent.CompletionException) cause = cause.getCause();
            same(what + " (" + cause.getMessage() + ")", cause.getClass().getSimpleName(), exception);
            return;
        }
        throw new Difference(what + ": done, and should have been refused with " + exception);
    }
}
