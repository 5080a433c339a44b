import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.parser.SelectorParser;

/**
 * What RocketMQ's own filter says. A line on stdin has an expression and properties, name=value, with tabs between
 * them; the line on stdout says REFUSED, ERROR (while it was evaluated), MATCH or NONE.
 */
public final class FilterOracle {
    public static void main(String[] args) throws IOException {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, true, "UTF-8");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] parts = line.split("\t");
            Map<String, String> properties = new HashMap<>();
            for (int k = 1; k < parts.length; k++) {
                int at = parts[k].indexOf('=');
                properties.put(parts[k].substring(0, at), parts[k].substring(at + 1));
            }
            out.println(verdict(parts[0], properties));
        }
    }

    private static String verdict(String text, Map<String, String> properties) {
        Expression expression;
        try {
            expression = SelectorParser.parse(text);
        } catch (Throwable error) { // its scanner throws Errors
            return "REFUSED";
        }
        try {
            Object value = expression.evaluate(new EvaluationContext() {
                @Override
                public Object get(String name) {
                    return properties.get(name);
                }

                @Override
                public Map<String, Object> keyValues() {
                    return null;
                }
            });
            return Boolean.TRUE.equals(value) ? "MATCH" : "NONE";
        } catch (Exception error) {
            return "ERROR";
        }
    }
}
